"""docs/reference/ matches the code and is complete."""

from __future__ import annotations

import re

import pytest
import reference_pages as reference
from written import PAGES, blocks

from pyrometer.cli import COMMANDS
from pyrometer.export.ledger_metrics import LedgerCollector
from pyrometer.export.run_metrics import GAUGES
from pyrometer.model.glossary import GLOSSARY
from pyrometer.model.settings import Settings
from pyrometer.model.states import CAUSES, STATES


@pytest.mark.parametrize("name", reference.PAGES_OF)
def test_reference_pages_are_up_to_date(name):
    stands = (reference.FOLDER / name).read_text(encoding="utf-8")
    assert stands == reference.PAGES_OF[name](), "`make reference` writes it again"


def test_reference_folder_has_no_other_files():
    assert {path.name for path in reference.FOLDER.iterdir()} == set(reference.PAGES_OF)


def headings(name: str) -> set[str]:
    return set(re.findall(r"^#+ (.+)$", (reference.FOLDER / name).read_text(), re.MULTILINE))


def named(name: str) -> set[str]:
    """The names in the first column of the tables of a page."""
    return set(re.findall(r"^\| `([^`]+)` \|", (reference.FOLDER / name).read_text(), re.MULTILINE))


def test_reference_lists_every_command_setting_state_cause_and_metric():
    assert {f"pyrometer {name}" for name in COMMANDS} <= headings("commands.md")
    assert set(Settings._fields) <= named("settings.md")
    assert {state.name for state in STATES} <= named("causes.md")
    assert set(CAUSES) <= headings("causes.md")
    counted = {one.name + ("_total" if one.type == "counter" else "") for one in LedgerCollector().collect()}
    assert counted | {gauge.name for gauge in GAUGES} <= named("metrics.md")


def test_every_command_has_an_example_from_another_page():
    page = reference.FOLDER / "commands.md"
    others = {command.text for path in PAGES if path != page for block in blocks(path) for command in block.commands()}
    examples = {command.text for block in blocks(page) for command in block.commands()}
    assert examples <= others
    assert {text.split()[1] for text in examples} == set(COMMANDS)


def test_glossary_terms_are_unique():
    terms = [one for terms in GLOSSARY.values() for one in terms]
    names = [name for one in terms for name in one.name.split(", ")]
    assert len(set(names)) == len(names)
    assert all(one.meaning.endswith(".") for one in terms)
    assert not any(name in one.avoid for one in terms for name in one.name.split(", "))
