"""The scope of a team: it reads all of its own records and no others, and all teams together are the whole."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.account.query.scope import ScopeNotFoundError, _kept, only
from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import GpuSample, Price, Workload
from pyrometer.model.settings import Settings
from pyrometer.questions.registry import NotFoundError, bring_up_to_date, question
from pyrometer.store import Store
from tests.support import clusters, two_teams
from tests.support.effort import THOROUGH

DEFAULT = Settings()
TEAMS = ("nlp", "vision", "platform", None)


def answer(store: Store, what: str, settings: Settings = DEFAULT, **parameters: str) -> dict[str, Any]:
    covered = bring_up_to_date(store, settings, now_ms=clusters.START_MS + 1000 * clusters.HOUR)
    assert covered is not None
    return question(what, {"all": "1", **parameters}, settings)(store, covered)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Store(tmp_path_factory.mktemp("both"), create=True) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyrometer.account.build.ledger.SUMMED_SLOT_MINUTES", 0)
        store.append(two_teams.all_records())
        yield store


@st.composite
def held(draw: st.DrawFn) -> list[Any]:
    """Jobs of teams that only queues, labels or namespaces name, in experiments that several of them share."""
    records: list[Any] = [
        *clusters.cluster(hours=3, nodes=3),
        Price(clusters.START_MS, 7, clusters.START_MS, pool="pool"),
    ]
    for number in range(draw(st.integers(1, 5))):
        name = f"job-{number}"
        from_min = draw(st.integers(0, 120))
        to_min = draw(st.none() | st.integers(from_min + 1, 180))
        by = draw(st.sampled_from(("label:team", "queue", None)))
        records.append(
            Workload(
                clusters.at(draw(st.integers(0, 60))),
                "test",
                name,
                "Job",
                "ml",
                name,
                team=draw(st.sampled_from(TEAMS)) if by else None,
                team_rule=by,
                experiment=draw(st.sampled_from(("shared", "own", None))),
                experiment_rule=draw(st.sampled_from(("label:experiment", "name"))),
                queue=draw(st.sampled_from(("nlp", "fast", None))),
            )
        )
        node = draw(st.integers(0, 2))
        records += clusters.pod(
            f"pod-{number}", name, f"n{node}", gpus=draw(st.integers(1, 2)), from_min=from_min, to_min=to_min
        )
        records += clusters.samples(f"n{node}", 0, 0, 60, gpu_util_permille=900, power_w=300)
    return records


@pytest.mark.heavy
@settings(max_examples=10 if THOROUGH else 4)
@given(held(), st.sampled_from(("experiment", "namespace")))
def test_scopes_of_all_teams_add_up_to_the_whole(records: list[Any], bill_to: str) -> None:
    settings = Settings(bill_to=bill_to)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), create=True) as store:
        store.append(records)
        for by in ("team", "experiment"):
            whole = answer(store, "cost", settings, by=by)
            parts = {row[by]: row["gpu_ms"] for row in whole["rows"]}
            without_group = parts.pop(None, 0)
            by_group = {name: answer(store, "cost", settings, by=f"{by},state", **{by: name}) for name in parts}
            assert {name: one["total"]["gpu_ms"] for name, one in by_group.items()} == parts
            assert sum(parts.values()) + without_group == whole["total"]["gpu_ms"]
            assert {row[by] for one in by_group.values() for row in one["rows"]} <= set(parts)
            assert bool(without_group) <= (by == "experiment")  # free time has no experiment; its team is the platform
        for row in answer(store, "cost", settings, by="workload")["rows"]:
            if row["workload"]:
                uid = row["workload"]["uid"]
                alone = answer(store, "cost", settings, by="state", workload=uid)["total"]
                assert alone["gpu_ms"] == row["gpu_ms"]
                # Rows are rounded so that they add up to their total: up or down, whichever half they are next to.
                assert abs(alone["usd_micro"] - row["usd_micro"]) <= 1
                assert answer(store, "burn", settings, workload=uid)["total"]["gpu_ms"] == row["gpu_ms"]


def test_a_workload_is_found_by_its_uid_and_a_pod_without_one_by_its_own(tmp_path: Path) -> None:
    records = [*clusters.cluster(nodes=3), *clusters.job(), *clusters.run(), *clusters.all_ranks(0, 120)]
    records += clusters.pod("alone", None, "n2", gpus=1, from_min=0, to_min=60)
    with Store(tmp_path, create=True) as store:
        store.append(records)
        assert [row["run"] for row in answer(store, "runs", workload="llama")["rows"]] == ["run"]
        assert answer(store, "runs", workload="alone")["rows"] == []
        assert answer(store, "burn", workload="alone")["total"]["gpu_ms"] == clusters.HOUR
        assert {row["pod"] for row in answer(store, "cost", by="pod", workload="alone")["rows"]} == {"alone"}
        for what in ("burn", "cost", "runs", "why"):
            with pytest.raises(NotFoundError, match="Workload 'nosuch' not found"):
                answer(store, what, workload="nosuch")


def test_a_workload_of_another_team_is_not_found(both: Store) -> None:
    theirs = {row["workload"]["uid"] for row in answer(both, "cost", by="workload")["rows"] if row["workload"]}
    theirs -= {row["workload"]["uid"] for row in answer(both, "cost", by="workload", team=two_teams.TEAM)["rows"]}
    assert theirs
    for uid in theirs:
        with pytest.raises(NotFoundError, match="not found"):
            answer(both, "burn", team=two_teams.TEAM, workload=uid)


def test_an_experiment_that_only_its_runs_name_has_no_bill_and_is_no_error(tmp_path: Path) -> None:
    """A link of the page keeps the experiment as a filter wherever it goes."""
    runs = [one._replace(experiment="tuning") for one in clusters.run()]
    with Store(tmp_path, create=True) as store:
        store.append([*clusters.cluster(), *clusters.job(), *runs, *clusters.all_ranks(0, 60)])
        assert answer(store, "worth", experiment="tuning")["runs"]
        assert answer(store, "burn", experiment="tuning")["total"]["gpu_ms"] == 0
        with pytest.raises(NotFoundError, match="no experiment 'tuned'"):
            answer(store, "burn", experiment="tuned")


def test_worth_of_an_experiment_without_runs_has_its_cost(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        store.append([*clusters.cluster(), *clusters.job()])
        (row,) = (row for row in answer(store, "cost", by="experiment")["rows"] if row["experiment"])
        worth = answer(store, "worth", experiment=row["experiment"], target="2", metric="loss")
        assert (worth["runs"], worth["metric"], worth["teams"]) == ([], None, ["nlp"])
        assert worth["total"]["usd_micro"] == row["usd_micro"]
        with pytest.raises(NotFoundError, match="Experiment 'nosuch' not found"):
            answer(store, "worth", experiment="nosuch")


def test_energy_of_all_teams_adds_up_to_the_whole(both: Store) -> None:
    whole = answer(both, "cost", by="team")
    assert whole["total"]["energy_gpu_ms"] > 0
    of_teams = [answer(both, "cost", team=row["team"])["total"] for row in whole["rows"]]
    assert sum(one["energy_gpu_ms"] for one in of_teams) == whole["total"]["energy_gpu_ms"]
    assert sum(one["energy_wh"] or 0 for one in of_teams) == pytest.approx(
        whole["total"]["energy_wh"], abs=len(of_teams)
    )


def test_every_kind_of_record_has_a_scope_rule() -> None:
    for with_platform in (True, False):
        assert set(_kept(with_platform=with_platform)) == set(SCHEMAS)


# What names a team's node and is not of a pod is the platform's; of owners only roots are kept.
NOT_THEIRS = {"owner", "slot", "node", "price", "carry", "hour_use", "minute_use"}


def test_scope_has_all_rows_of_the_team_and_no_others(both: Store) -> None:
    answer(both, "cost")
    for kind in SCHEMAS:
        both.expose_all([kind])
        everything = both.connection.execute(f"FROM {kind}").fetchall()
        with only(both, two_teams.TEAM, None):
            both.expose_all([kind])
            seen = both.connection.execute(f"FROM {kind}").fetchall()
        assert two_teams.THEIRS not in str(seen)
        ours = {str(row) for row in everything if two_teams.OURS in str(row) and two_teams.THEIRS not in str(row)}
        ours = {row for row in ours if "'free'" not in row and "'unhealthy'" not in row and "victim" not in row}
        assert kind in NOT_THEIRS or ours <= {str(row) for row in seen}
        assert kind in ("carry", "minute_sum") or len(everything) > len(seen) > 0 or kind == "owner"


def test_scope_has_only_the_pipelines_and_sweeps_of_the_team(both: Store) -> None:
    for name in ("nightly", "search"):
        joined = {"nightly": " ", "search": "-"}[name]
        ours = answer(both, "show", run=f"{two_teams.OURS}{joined}{name}", team=two_teams.TEAM)
        assert two_teams.THEIRS not in str(ours)
        assert (ours["pipeline"] or ours["sweep"])["total"]["gpu_ms"] == clusters.HOUR
        with pytest.raises(NotFoundError) as error:
            answer(both, "show", run=f"{two_teams.THEIRS}{joined}{name}", team=two_teams.TEAM)
        assert two_teams.THEIRS not in str(error.value).partition("in this time range")[2]
    rows = answer(both, "cost", by="pipeline,pipeline_step,sweep,trial", team=two_teams.TEAM)["rows"]
    assert two_teams.THEIRS not in str(rows)


def test_samples_belong_to_the_holder_at_their_time(both: Store) -> None:
    def power(team: str) -> set[tuple[int, ...]]:
        with only(both, team, None):
            both.expose_all(["gpu_sample", "node_sample"])
            rows = both.connection.execute("SELECT power_w FROM gpu_sample WHERE node_uid = ?", [two_teams.SHARED])
            watts = set(rows.fetchall())
            machine = set(both.connection.execute("SELECT cpu_busy_permille FROM node_sample").fetchall())
        return watts | machine

    assert power(two_teams.TEAM) == {(100,)}
    assert power(two_teams.OTHER_TEAM) == {(200,), (101,)}
    assert power("platform") == {(100,), (101,)}


@pytest.mark.heavy
def test_runs_with_the_same_name_are_separated_by_their_ranks(both: Store) -> None:
    ours = answer(both, "show", run=two_teams.SAME_RUN, team=two_teams.TEAM)
    theirs = answer(both, "show", run=two_teams.SAME_RUN, team=two_teams.OTHER_TEAM)
    assert set(ours["metrics"]) == {"walrus_accuracy"}
    assert set(theirs["metrics"]) == {"quokka_accuracy"}
    assert answer(both, "show", run=two_teams.SAME_RUN)["attempts"] == 2


@pytest.mark.heavy
def test_a_rank_claimed_by_two_teams_belongs_to_neither(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        store.append(two_teams.all_records())
        (theirs,) = (one for one in two_teams.other_records_of(two_teams.THEIRS, "", 1) if type(one).__name__ == "Run")
        store.append([theirs._replace(time_ms=theirs.time_ms + 1, pod_uid=f"{two_teams.OURS}-late")])
        rows = answer(store, "runs", team=two_teams.TEAM)["rows"]
        assert [row["attempts"] for row in rows if row["run"] == two_teams.SAME_RUN] == [1]
        assert set(answer(store, "show", team=two_teams.TEAM, run=two_teams.SAME_RUN)["metrics"]) == {"walrus_accuracy"}


def test_leaving_a_scope_restores_the_store_and_drops_its_tables(both: Store) -> None:
    before = answer(both, "why")
    answer(both, "why", team=two_teams.TEAM)
    temporary = "SELECT table_name FROM duckdb_tables() WHERE temporary"
    with only(both, two_teams.TEAM, None):
        left = {name for (name,) in both.connection.execute(temporary).fetchall()}
    assert left
    assert all(name.startswith("scope_") for name in left)
    assert both.connection.execute(temporary).fetchall() == []
    assert answer(both, "why") == before


def test_not_found_errors_do_not_name_other_teams(both: Store) -> None:
    with (
        pytest.raises(ScopeNotFoundError, match=r"no team 'quok'\. `pyrometer cost --by team` lists them\."),
        only(both, "quok", None),
    ):
        pass
    with (
        pytest.raises(ScopeNotFoundError, match=f"no experiment 'quokka-sft' of team '{two_teams.TEAM}'"),
        only(both, two_teams.TEAM, "quokka-sft"),
    ):
        pass


@pytest.mark.heavy
def test_activity_of_other_teams_does_not_change_answers(tmp_path: Path) -> None:
    ours = [
        *two_teams.shared_records(),
        *two_teams.training_of(two_teams.OURS),
        *two_teams.other_records_of(two_teams.OURS, "they", 0),
    ]
    theirs = [
        *two_teams.training_of(two_teams.THEIRS),
        *two_teams.other_records_of(two_teams.THEIRS, two_teams.OURS, 1),
    ]
    questions: list[tuple[str, dict[str, str]]] = [
        ("why", {}),
        ("cost", {"by": "node,state"}),
        ("cost", {"by": "cause"}),
        ("runs", {}),
        ("show", {"run": two_teams.OUR_RUN}),
        ("trace", {"run": two_teams.OUR_RUN, "step": "20"}),
        ("lineage", {"run": two_teams.OUR_RUN, "spikes": "1"}),
    ]
    answers = []
    sampled = [one for one in theirs if isinstance(one, GpuSample)]  # the last minute's energy is known by the next one
    for number, records in enumerate(([*ours, *sampled], [*ours, *theirs])):
        with Store(tmp_path / str(number), create=True) as store:
            store.append(records)
            answers.append([answer(store, what, team=two_teams.TEAM, **more) for what, more in questions])
    assert answers[0] == answers[1]
