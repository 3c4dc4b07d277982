"""The audit log: one line per entry, bounded files, no secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.cli import main
from pyrometer.questions.tokens import Principal
from pyrometer.serve.http import audit
from pyrometer.serve.http.audit import Audit
from pyrometer.serve.http.http_error import HttpError, WrongTokenError


@given(st.text(), st.text(max_size=500))
def test_audit_line_stays_one_line_of_ascii(name: str, value: str) -> None:
    written = audit.line("question", who=name, **{"asked": {"run": value}})
    assert written.isascii()
    assert not {"\n", "\r", "\x1b", "\x00"} & set(written)
    assert len(written) < 7 * 1000
    assert json.loads(written)["what"] == "question"


def test_audit_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_BYTES", 2_000)
    log = Audit(tmp_path, on=True)
    for number in range(400):
        log.write("question", number=number)
    log.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 1 + audit.OLDER_FILES
    assert all(file.stat().st_size <= 2_000 and file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert '"number": 399' in (tmp_path / audit.FILE).read_text().splitlines()[-1]


def test_audit_off_writes_no_file(tmp_path: Path) -> None:
    log = Audit(tmp_path, on=False)
    log.write("question")
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_lost_audit_lines_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_WAITING", 2)
    log = Audit(tmp_path, on=True)
    monkeypatch.setattr(audit.QueueListener, "start", lambda self: None)  # a disk that is far behind
    for _ in range(5):
        log.write("question")
    assert log._lines.lost + 0 >= 1


def test_token_commands_are_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["create", "v", "--role", "team_viewer", "--team", "a\nb"], ["revoke", "v"], ["revoke", "v"]):
        with pytest.raises(SystemExit):
            main(["token", *words, "--data", str(tmp_path)])
    secret = capsys.readouterr().out.strip()
    text = (tmp_path / audit.FILE).read_text()
    written = [json.loads(line) for line in text.splitlines()]
    assert [(one["what"], one["name"]) for one in written] == [("token_created", "v"), ("token_revoked", "v")]
    assert written[0]["team"] == "a\nb"
    assert secret.startswith("pyr_")
    assert secret not in text
    assert (tmp_path / audit.FILE).stat().st_mode & 0o777 == 0o600


def _entries(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / audit.FILE).read_text().splitlines()]


def test_line_replaces_tokens_and_shortens_values() -> None:
    entry = json.loads(audit.line("question", text="pyr_secret-1 and pyr_x", long="a" * 500))
    assert entry["text"] == "pyr_*** and pyr_***"
    assert entry["long"] == "a" * audit.MAX_VALUE_LENGTH + "…"


def test_request_has_only_known_parameters(tmp_path: Path) -> None:
    log = Audit(tmp_path, on=True)
    log.request(Principal("me", "viewer"), "192.0.2.7", "/api/v1/cost", {"by": "team", "password": "x"}, 200, 0.0)
    log.close()
    (entry,) = _entries(tmp_path)
    assert (entry["asked"], entry["unknown_parameters"]) == ({"by": "team"}, 1)
    assert (entry["who"], entry["by"], entry["from"]) == ("me", "token", "192.0.2.7")


def test_refusals_without_a_token_are_only_counted(tmp_path: Path) -> None:
    log = Audit(tmp_path, on=True)
    for _ in range(3):
        log.refused(HttpError(401, "A token is needed."), "192.0.2.7", "/")
    log.refused(WrongTokenError(401, "This token does not exist."), "192.0.2.7", "/")
    log.close()
    entries = _entries(tmp_path)
    assert [(one["what"], one.get("of"), one.get("times")) for one in entries] == [
        ("refused", None, None),
        ("count", "refused with 401", 3),
    ]


def test_note_appends_to_the_log_of_a_server(tmp_path: Path) -> None:
    for number in range(2):
        audit.note(tmp_path, "token_created", name=f"n{number}")
    assert [entry["name"] for entry in _entries(tmp_path)] == ["n0", "n1"]
    assert (tmp_path / audit.FILE).stat().st_mode & 0o777 == 0o600
