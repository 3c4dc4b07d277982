"""`pyrometer token`: creates, lists and revokes tokens."""

from __future__ import annotations

from pyrometer.questions.tokens import Tokens


def test_token_is_printed_once_and_listed_without_its_secret(pyrometer, tmp_path):
    (secret,) = pyrometer("token", "create", "ada", "--role", "team_viewer", "--team", "nlp", "--data", tmp_path).lines
    heading, row = pyrometer("token", "list", "--data", tmp_path).lines
    assert heading.split() == ["name", "role", "team", "created"]
    assert row.split()[:3] == ["ada", "team_viewer", "nlp"]
    assert secret not in row


def test_token_viewer_is_the_default_role(pyrometer, tmp_path):
    pyrometer("token", "create", "ada", "--data", tmp_path)
    (token,) = Tokens(tmp_path).listed()
    assert (token.name, token.role, token.team) == ("ada", "viewer", None)


def test_token_with_a_known_name_is_an_error(pyrometer, tmp_path):
    assert pyrometer("token", "create", "ada", "--data", tmp_path).code == 0
    assert "ada" in pyrometer("token", "create", "ada", "--data", tmp_path).failed(1)


def test_revoking_the_last_token_notes_that_the_server_refuses_requests(pyrometer, tmp_path):
    pyrometer("token", "create", "ada", "--data", tmp_path)
    pyrometer("token", "create", "bob", "--data", tmp_path)
    assert pyrometer("token", "revoke", "ada", "--data", tmp_path).lines == []
    (note,) = pyrometer("token", "revoke", "bob", "--data", tmp_path).lines
    assert note.startswith("That was the last token. The server refuses all requests until you create one")
    assert pyrometer("token", "list", "--data", tmp_path).lines[0].startswith("No tokens. The server refuses")


def test_revoking_an_unknown_token_is_an_error(pyrometer, tmp_path):
    assert "ada" in pyrometer("token", "revoke", "ada", "--data", tmp_path).failed(1)


def test_list_of_a_folder_without_tokens_names_loopback(pyrometer, tmp_path):
    assert pyrometer("token", "list", "--data", tmp_path).lines == ["No tokens. A server answers on loopback only."]
