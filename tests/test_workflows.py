"""The workflows on GitHub: pinned actions, few permissions, and commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from pyrometer import __version__

REPOSITORY = Path(__file__).parent.parent
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
# Permissions to write, by workflow and job. A new one needs a reason.
MAY_WRITE = {
    "release.package": {"id-token", "attestations"},
    "release.image": {"packages", "id-token", "attestations"},
    "release.chart": {"packages", "id-token", "attestations"},
    "release.pypi": {"id-token"},
    "release.github": {"contents"},
}


def jobs() -> dict[str, dict]:
    """Every job by the name of its workflow and its own name."""
    return {
        f"{path.stem}.{name}": job
        for path in WORKFLOWS
        for name, job in yaml.safe_load(path.read_text())["jobs"].items()
    }


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_to_a_commit_and_name_its_version(path):
    uses = re.findall(r"uses: (\S+)(.*)", path.read_text())
    assert uses
    for action, comment in uses:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action)
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


def test_an_action_has_one_version():
    pins = {pin for path in WORKFLOWS for pin in re.findall(r"uses: (\S+@\S+)", path.read_text())}
    assert len({pin.split("@")[0] for pin in pins}) == len(pins)


def test_permissions_are_as_few_as_possible():
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    granted = {
        name: {scope for scope, access in job["permissions"].items() if access == "write"}
        for name, job in jobs().items()
        if "permissions" in job
    }
    assert granted == MAY_WRITE


def test_each_job_has_a_time_limit():
    assert [name for name, job in jobs().items() if "steps" in job and "timeout-minutes" not in job] == []


def test_make_targets_and_files_of_the_steps_exist():
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    text = "\n".join(step.get("run", "") for job in jobs().values() for step in job.get("steps", ()))
    named = set(re.findall(r"\bmake ([a-z-]+)", text))
    assert {"setup", "lint", "test", "test-lowest", "coverage", "docs"} <= named <= targets
    files = set(re.findall(r"\b(?:locks|deploy)/[\w./-]+", text)) - {"deploy/chart"}
    assert files
    assert [file for file in files if not (REPOSITORY / file).exists()] == []


def test_each_supported_python_is_tested():
    versions = jobs()["ci.test"]["strategy"]["matrix"]["python-version"]
    declared = re.findall(r"Programming Language :: Python :: (\d\.\d+)", (REPOSITORY / "pyproject.toml").read_text())
    assert versions == declared


def test_issue_forms_have_unique_ids():
    for path in sorted((REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("*.yml")):
        ids = [part["id"] for part in yaml.safe_load(path.read_text()).get("body", ()) if "id" in part]
        assert len(ids) == len(set(ids)), path.name


def test_the_changelog_starts_with_the_version_of_the_package():
    (latest, *_) = re.findall(r"^## (.+)$", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(__version__)} \((?:unreleased|\d{{4}}-\d\d-\d\d)\)", latest)
