"""The example of docs/chargeback.md prints what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pyrometer.cli import main

DOC = (Path(__file__).parents[2] / "docs" / "chargeback.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\b.*?\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL)


def masked(text: str) -> list[str]:
    """Lines without the time at which a month was closed and the user who closed it."""
    text = re.sub(r"(closed|\d{4}-\d\d-\d\dT[\d:.]+Z) +\w+ ", "at by ", text)
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.heavy
def test_chargeback_example_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices.yaml").write_text(blocks("yaml")[0])
    (tmp_path / "bill.csv").write_text(blocks("csv")[0])
    lines_checked = 0
    for block in blocks("console"):
        monkeypatch.delenv("PYROMETER_PRICE_BOOK", raising=False)
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, expected = part.partition("\n")
            words = shlex.split(line)
            if words[0] == "export":
                monkeypatch.setenv(*words[1].split("="))
                continue
            with pytest.raises(SystemExit) as ended:
                main(words[1:])
            assert not ended.value.code
            printed = capsys.readouterr().out
            if expected:
                lines_checked += 1
                assert masked(printed) == masked(expected), line
    assert lines_checked == 6
