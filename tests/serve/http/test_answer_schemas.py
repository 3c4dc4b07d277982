"""The JSON schemas of answers."""

from __future__ import annotations

from typing import Any

import pytest

from pyrometer.questions.registry import question_names
from pyrometer.serve.http.answer_schemas import ANSWERS, TEXT, list_of, nullable, object_of


def test_every_question_has_a_schema() -> None:
    assert set(ANSWERS) == set(question_names())


def test_object_requires_all_of_its_properties() -> None:
    assert object_of(name=TEXT, size=nullable("integer")) == {
        "type": "object",
        "required": ["name", "size"],
        "properties": {"name": {"type": "string"}, "size": {"type": ["integer", "null"]}},
    }
    assert list_of(TEXT) == {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize("what", sorted(ANSWERS))
def test_money_is_nullable_and_integer_in_micro_dollars(what: str) -> None:
    def check(schema: Any) -> None:
        if isinstance(schema, list):
            for one in schema:
                check(one)
        elif isinstance(schema, dict):
            for name, one in schema.get("properties", {}).items():
                if name == "usd_micro" and one["type"] != ["object", "null"]:  # of each state, in a timeline
                    assert one == nullable("integer")
                elif name == "usd":
                    assert one == nullable("number")
            for one in schema.values():
                check(one)

    check(ANSWERS[what])
