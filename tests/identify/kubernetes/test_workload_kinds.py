"""The table of workload kinds and rules of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pyrometer.identify.kubernetes.workload_kinds import FieldRef, RuleError, known_kinds, parse_field_ref

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.yaml"))


def test_every_kind_in_the_table_has_a_fixture() -> None:
    shown = {
        (one["apiVersion"].rpartition("/")[0], one["kind"])
        for path in GOLDEN
        for one in yaml.safe_load(path.read_text())["owners"]
    }
    kinds = known_kinds()
    same_shape = {
        ("serving.kserve.io", "LLMInferenceService"),
        ("machinelearning.seldon.io", "SeldonDeployment"),
        ("run.ai", "InteractiveWorkload"),
        ("run.ai", "InferenceWorkload"),
        ("run.ai", "DistributedWorkload"),
    }
    assert set(kinds.by_owner) - shown == same_shape


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("- {group: a}", "has no `kind`"),
        ("- {kind: A}", "needs one of `group`"),
        ("- {kind: A, group: b, shade: red}", "has 'shade'. Known: kind,"),
        ("- {kind: A, group: b, rank: index}", "'index' is not a field"),
        ("kind: A", "is not a list of rules"),
        ("- [", "cannot be read"),
    ],
)
def test_known_kinds_rejects_an_invalid_rule(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "rules.yaml").write_text(text)
    with pytest.raises(RuleError, match=error.replace("[", r"\[")):
        known_kinds(str(tmp_path / "rules.yaml"))


def test_known_kinds_rejects_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="cannot be read"):
        known_kinds(str(tmp_path / "missing.yaml"))


def test_parse_field_ref_splits_the_place_from_the_key() -> None:
    assert parse_field_ref("annotation:a/b:c", "here") == FieldRef("annotation", "a/b:c")
    assert str(parse_field_ref("env:RANK", "here")) == "env:RANK"


@pytest.mark.parametrize("text", ["label", "label:", "field:name", ""])
def test_parse_field_ref_rejects_an_unknown_place(text: str) -> None:
    with pytest.raises(RuleError, match="is not a field"):
        parse_field_ref(text, "here")


def test_own_rule_comes_before_the_bundled_one(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("- {kind: Deployment, group: apps, serves: false}")
    assert known_kinds().of("apps", "Deployment") != known_kinds(str(tmp_path / "rules.yaml")).of("apps", "Deployment")
    assert known_kinds().of("apps", "NoSuchKind") is None
