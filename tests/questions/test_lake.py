"""Questions to a lake of several clusters."""

from __future__ import annotations

import pytest

from pyrometer.questions.lake import Lake, answer_of_lake
from pyrometer.questions.parameters import QuestionError
from pyrometer.questions.registry import NotFoundError
from pyrometer.store import Store
from pyrometer.store.engines import Local
from pyrometer.store.lake import LakeStorage
from tests.support.hand_lakes import copy_to_lake, facts, fill_store, settings_of


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Two clusters with a few days each."""
    folder = tmp_path_factory.mktemp("lake")
    storage = LakeStorage(str(folder / "lake"))
    for number, name in enumerate(("east", "west")):
        with Store(folder / name, create=True) as store:
            fill_store(store, facts(number, name))
            copy_to_lake(store, storage, name)
    return Lake(storage, (), str(folder / "cache"), 64, settings_of)


def test_answer_names_its_clusters(lake: Lake) -> None:
    answer = answer_of_lake(lake, "cost", {"by": "cluster", "all": "1"}, Local())
    assert [one["cluster"] for one in answer["clusters"]] == ["east", "west"]
    assert len({one["to"] for one in answer["clusters"]}) == 1
    one = answer_of_lake(lake._replace(clusters=("west",)), "cost", {"by": "team", "all": "1"}, Local())
    assert [one["cluster"] for one in one["clusters"]] == ["west"]


def test_cost_of_all_clusters_is_the_sum_of_each(lake: Lake) -> None:
    def total(*clusters: str) -> int:
        answer = answer_of_lake(lake._replace(clusters=clusters), "cost", {"by": "team", "all": "1"}, Local())
        gpu_ms: int = answer["total"]["gpu_ms"]
        return gpu_ms

    assert total() == total("east") + total("west") > 0


def test_runs_of_clusters_are_joined(lake: Lake) -> None:
    assert answer_of_lake(lake, "runs", {"all": "1"}, Local())["rows"] == []


@pytest.mark.parametrize("what", ["cost", "runs"])
def test_unknown_team_is_not_found_in_any_cluster(lake: Lake, what: str) -> None:
    with pytest.raises(NotFoundError, match="nosuch"):
        answer_of_lake(lake, what, {"all": "1", "team": "nosuch"}, Local())


def test_invalid_question_is_rejected_before_the_lake_is_read(lake: Lake) -> None:
    with pytest.raises(QuestionError, match="--by 'teem' is not a grouping"):
        answer_of_lake(lake, "cost", {"by": "teem"}, Local())
