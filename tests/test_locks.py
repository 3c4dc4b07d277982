"""The lock files agree with pyproject.toml, and every package in them has a hash."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPOSITORY = Path(__file__).parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
NOT_LOCKED = {"torch"}  # its build depends on the machine
REQUIRED = {
    "dev.txt": [*EXTRAS["server"], *EXTRAS["agent"], *EXTRAS["dev"]],
    "server.txt": [*EXTRAS["server"], *EXTRAS["agent"]],
    "docs.txt": EXTRAS["docs"],
    "build.txt": PROJECT["build-system"]["requires"],
}
UPDATE = "run `make lock`"


def blocks_of(name: str) -> list[str]:
    """The text of each locked package: its version with a marker, and its hashes."""
    text = (REPOSITORY / "locks" / name).read_text()
    return re.findall(r"^[A-Za-z0-9].*?(?=^[A-Za-z0-9#]|\Z)", text, re.MULTILINE | re.DOTALL)


def locked_in(name: str) -> dict[str, list[Version]]:
    """The versions of each package; several if they depend on the Python version."""
    versions: dict[str, list[Version]] = {}
    for block in blocks_of(name):
        requirement = Requirement(block.split("\\")[0])
        (pin,) = requirement.specifier
        assert pin.operator == "=="
        versions.setdefault(canonicalize_name(requirement.name), []).append(Version(pin.version))
    return versions


@pytest.mark.parametrize("name", REQUIRED)
def test_each_required_package_is_locked_at_an_allowed_version(name):
    locked = locked_in(name)
    for text in REQUIRED[name]:
        requirement = Requirement(text)
        package = canonicalize_name(requirement.name)
        if package in NOT_LOCKED:
            assert package not in locked
            continue
        assert package in locked, UPDATE
        assert [version for version in locked[package] if version not in requirement.specifier] == [], UPDATE


@pytest.mark.parametrize("name", REQUIRED)
def test_each_locked_package_has_a_hash(name):
    blocks = blocks_of(name)
    assert blocks
    assert [block for block in blocks if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", block)] == []


@pytest.mark.parametrize("name", REQUIRED)
def test_lock_files_name_no_index(name):
    assert (
        re.search(r"https?:|file:|--index|--extra-index|--find-links", (REPOSITORY / "locks" / name).read_text())
        is None
    )


def test_the_image_has_the_versions_that_were_tested():
    tested = locked_in("dev.txt")
    assert {name: versions for name, versions in locked_in("server.txt").items() if tested[name] != versions} == {}


def test_no_part_of_cuda_is_locked():
    excluded = (REPOSITORY / "locks" / "cuda.txt").read_text().splitlines()
    names = {name for name in locked_in("dev.txt") if name.startswith(("nvidia-", "cuda-")) or name in excluded}
    assert names == {"nvidia-ml-py"}
