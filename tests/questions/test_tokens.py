"""Tokens of a folder: digests, unique names, broken files, and teams."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyrometer.questions.tokens import FILE, Principal, TokenError, Tokens, digest_of, same


def test_only_a_digest_is_stored(tmp_path: Path) -> None:
    secret = Tokens(tmp_path).create("me", "admin", 0)
    assert secret.startswith("pyr_")
    assert len(secret) > 40
    assert secret not in (tmp_path / FILE).read_text()
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


def test_names_are_unique(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    tokens.create("me", "viewer", 0)
    with pytest.raises(TokenError, match="already"):
        tokens.create("me", "viewer", 0)
    with pytest.raises(TokenError, match=r"Token 'you' not found\. Existing tokens: me"):
        tokens.revoke("you")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{}",
        "[]",
        "null",
        '{"tokens": 1}',
        '{"tokens": [1]}',
        '{"tokens": [{}]}',
        "[" * 100_000,
        '{"tokens": [{"name": "a", "role": "admin", "sha256": null, "created_ms": 0}]}',
        '{"tokens": [{"name": "a", "role": ["admin"], "sha256": "' + 64 * "0" + '", "created_ms": 0}]}',
        '{"tokens": [{"name": "a", "role": "admin", "sha256": "' + 64 * "é" + '", "created_ms": 0}]}',
    ],
    ids=lambda text: text[:60],
)
def test_broken_file_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(TokenError, match="cannot be read"):
        Tokens(tmp_path).of(digest_of("pyr_any"))


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to itself"])
def test_path_that_is_not_a_file_requires_tokens_and_is_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / FILE
    make = {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link to itself": lambda: path.symlink_to(path)}
    make[kind]()
    assert Tokens(tmp_path).are_required()
    with pytest.raises(TokenError, match="cannot be read"):
        Tokens(tmp_path).of(digest_of("pyr_any"))


def test_dangling_link_requires_tokens(tmp_path: Path) -> None:
    (tmp_path / FILE).symlink_to(tmp_path / "unmounted" / FILE)
    assert Tokens(tmp_path).are_required()
    assert Tokens(tmp_path).of(digest_of("pyr_any")) is None


@pytest.mark.parametrize(("role", "team"), [("team_viewer", None), ("viewer", "nlp"), ("team_viewer", "")])
def test_only_team_viewers_have_a_team(tmp_path: Path, role: str, team: str | None) -> None:
    with pytest.raises(TokenError):
        Tokens(tmp_path).create("me", role, 0, team)


def test_token_is_found_by_its_digest_until_it_is_revoked(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    secret = tokens.create("lead", "team_viewer", 7, team="vision")
    found = Tokens(tmp_path).of(digest_of(secret))
    assert found is not None
    assert (found.name, found.role, found.created_ms, found.team) == ("lead", "team_viewer", 7, "vision")
    tokens.revoke("lead")
    assert Tokens(tmp_path).of(digest_of(secret)) is None
    assert tokens.are_required()


@pytest.mark.parametrize("name", ["", "n" * 201])
def test_token_name_length_is_limited(tmp_path: Path, name: str) -> None:
    with pytest.raises(TokenError, match="It must have 1 to 200"):
        Tokens(tmp_path).create(name, "viewer", 0)


def test_folder_without_tokens_requires_none(tmp_path: Path) -> None:
    assert Tokens(tmp_path).listed() == []
    assert not Tokens(tmp_path).are_required()


@pytest.mark.parametrize(
    ("role", "permission", "expected"),
    [
        ("viewer", "view_all", True),
        ("team_viewer", "view_all", False),
        ("ingest", "view", False),
        ("admin", "administer", True),
        ("unknown", "view", False),
    ],
)
def test_principal_has_the_permissions_of_its_role(role: str, permission: str, *, expected: bool) -> None:
    assert Principal("me", role).may(permission) is expected


def test_digests_are_compared_by_value() -> None:
    assert same(digest_of("pyr_a"), digest_of("pyr_a"))
    assert not same(digest_of("pyr_a"), digest_of("pyr_b"))
    assert digest_of("\ud800")  # a lone surrogate from JSON has a digest, too
