"""What is right, what is wrong, and by how much: against truths that are written by hand."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.account.build.ledger import build
from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers import score as scoring
from pyrometer.answers.score import TruthError, ledger_cells, score, truth_window
from pyrometer.answers.why import why
from pyrometer.model.settings import Settings
from pyrometer.model.states import STATES
from pyrometer.store import Store
from tests.support import clusters
from tests.support.clusters import at, cluster, event, job, run, steps

HOUR = clusters.HOUR


def finding(cause="hang", workload="llama", from_min=0.0, to_min=60.0, usd=100, culprit=None, detected_min=1.0, **more):
    named = workload and {"uid": workload, "kind": "PyTorchJob", "namespace": "ml", "name": workload}
    return {
        "cause": cause,
        "workload": named,
        "experiment": None,
        "team": None,
        "culprit": culprit,
        "from": iso(at(from_min), UTC),
        "to": iso(at(to_min), UTC),
        "gpu_ms": 1,
        "usd_micro": usd * 1_000_000,
        "usd": float(usd),
        "what_if": {"detected": iso(at(detected_min), UTC)},
    } | more


def cell(state, hours, workload="llama", hour=0):
    return {"workload_uid": workload, "hour": iso(at(60 * hour), UTC), "state": state, "gpu_ms": round(hours * HOUR)}


def truth(findings=(), cells=(), **more):
    return {
        "scenario": "test",
        "seed": 7,
        "evidence": "full",
        "window": {"from": iso(at(0), UTC), "to": iso(at(120), UTC)},
        "findings": list(findings),
        "cells": list(cells),
    } | more


def scored(planted=(), found=(), true_cells=(), found_cells=(), **more):
    return score(truth(planted, true_cells, **more), {"findings": list(found)}, list(found_cells))


def figures(answer):
    return answer["precision"], answer["recall"]


class TestMatching:
    def test_score_of_a_correct_answer_is_perfect(self):
        answer = scored([finding()], [finding()])
        assert (*figures(answer), answer["usd_error"]) == (1.0, 1.0, 0.0)
        assert answer["causes"] == [
            {"cause": "hang", "precision": 1.0, "recall": 1.0, "found": 1, "planted": 1, "matched": 1}
        ]
        assert (answer["missed"], answer["wrong"], answer["wrong_culprit"]) == ([], [], [])

    @pytest.mark.parametrize(
        "other", [{"cause": "straggler"}, {"workload": "mistral"}, {"workload": None}, {"from_min": 61, "to_min": 90}]
    )
    def test_finding_with_another_cause_workload_or_time_does_not_match(self, other):
        answer = scored([finding()], [finding(**other)])
        assert figures(answer) == (0.0, 0.0)
        assert len(answer["missed"]) == len(answer["wrong"]) == 1

    @pytest.mark.parametrize(("to_min", "right"), [(30, 1.0), (29.9, 0.0), (120, 1.0), (120.3, 0.0)])
    def test_match_needs_half_of_the_time(self, to_min, right):
        assert figures(scored([finding()], [finding(to_min=to_min)])) == (right, right)

    def test_near_miss_reports_its_overlap(self):
        assert scored([finding()], [finding(to_min=15)])["missed"][0]["overlap"] == 0.25

    def test_each_finding_matches_one_truth(self):
        answer = scored([finding()], [finding(), finding(from_min=1)])
        assert figures(answer) == (0.5, 1.0)
        answer = scored([finding(), finding(from_min=1)], [finding()])
        assert figures(answer) == (1.0, 0.5)

    def test_match_prefers_the_best_overlap(self):
        planted = [finding(to_min=60, culprit={"rank": 1}), finding(to_min=80, culprit={"rank": 2})]
        found = [finding(to_min=78, culprit={"rank": 2}), finding(to_min=62, culprit={"rank": 1})]
        answer = scored(planted, found)
        assert (*figures(answer), answer["culprit"]) == (1.0, 1.0, 1.0)

    def test_findings_of_the_platform_match_by_culprit(self):
        planted = [
            finding("hardware_failure", None, 0, 60, culprit={"node": "a"}),
            finding("hardware_failure", None, 2, 62, culprit={"node": "b"}),
        ]
        found = [
            finding("hardware_failure", None, 2, 60, culprit={"node": "a"}),
            finding("hardware_failure", None, 0, 60, culprit={"node": "b"}),
        ]
        answer = scored(planted, found)
        assert (*figures(answer), answer["culprit"]) == (1.0, 1.0, 1.0)

    def test_score_counts_per_cause(self):
        planted = [finding(), finding("straggler"), finding("straggler", "mistral")]
        found = [finding("straggler"), finding("data_stall")]
        answer = scored(planted, found)
        assert figures(answer) == (0.5, 0.3333)
        assert [(row["cause"], row["matched"], row["found"], row["planted"]) for row in answer["causes"]] == [
            ("hang", 0, 0, 1),
            ("straggler", 1, 1, 2),
            ("data_stall", 0, 1, 0),
        ]
        assert (answer["causes"][0]["precision"], answer["causes"][2]["recall"]) == (None, None)

    def test_score_without_truths_and_findings_is_undefined(self):
        answer = scored()
        assert (*figures(answer), answer["culprit"], answer["usd_error"], answer["state_error"]) == (None,) * 5


class TestDetection:
    def test_detection_is_the_ninetieth_percentile(self):
        names = [f"job-{n}" for n in range(20)]
        planted = [finding(workload=name, from_min=2) for name in names]
        found = [finding(workload=name, from_min=2, detected_min=3 + n) for n, name in enumerate(names)]
        assert scored(planted, found)["detect_s_p90"] == 60 * 18  # of twenty the eighteenth

    def test_detection_counts_from_the_true_start(self):
        assert scored([finding()], [finding(from_min=3, detected_min=5)])["detect_s_p90"] == 300

    def test_detection_counts_only_matched_findings(self):
        answer = scored([finding(), finding("straggler")], [finding(), finding("data_stall", detected_min=50)])
        assert answer["detect_s_p90"] == 60
        assert scored([finding()], [])["detect_s_p90"] is None

    @given(st.lists(st.floats(0, 1e6), min_size=1))
    def test_detection_is_later_for_at_most_one_in_ten(self, values):
        p90 = scoring._p90(values)
        assert p90 in values
        assert sum(value > p90 for value in values) <= len(values) / 10 < 1 + sum(value >= p90 for value in values)


class TestWhatCannotBeSeen:
    def test_undetectable_truth_is_not_counted(self):
        answer = scored([finding(), finding("straggler", detectable=False)], [finding()])
        assert (*figures(answer), answer["usd_error"], answer["missed"]) == (1.0, 1.0, 0.0, [])
        assert [row["cause"] for row in answer["causes"]] == ["hang"]

    def test_undetectable_truth_that_was_found_is_not_counted(self):
        hidden = finding("straggler", detectable=False)
        answer = scored([finding(), hidden], [finding(), finding("straggler", usd=70)])
        assert (*figures(answer), answer["usd_error"], answer["wrong"]) == (1.0, 1.0, 0.0, [])

    def test_other_finding_of_an_undetectable_kind_is_wrong(self):
        answer = scored([finding("straggler", detectable=False)], [finding("straggler", "mistral")])
        assert figures(answer) == (0.0, None)


class TestCulprit:
    @pytest.mark.parametrize(
        ("named", "found", "share"),
        [
            ({"rank": 5}, {"rank": 5, "node": "n1"}, 1.0),
            ({"rank": 5, "node": "n1"}, {"rank": 5, "node": "n2"}, 0.0),
            ({"rank": 5}, None, 0.0),
            ({"pods": ["b", "a"]}, {"pods": ["a", "b"]}, 1.0),
            (None, {"rank": 5}, None),
            ({}, {"rank": 5}, None),
        ],
    )
    def test_culprit_needs_every_field_of_the_truth(self, named, found, share):
        answer = scored([finding(culprit=named)], [finding(culprit=found)])
        assert answer["culprit"] == share
        assert len(answer["wrong_culprit"]) == (share == 0.0)
        assert answer["precision"] == 1.0

    def test_culprit_counts_only_matched_findings(self):
        planted = [finding(culprit={"rank": 1}), finding("straggler", culprit={"rank": 2})]
        assert scored(planted, [finding(culprit={"rank": 1})])["culprit"] == 1.0


def test_usd_error_compares_totals():
    answer = scored([finding(usd=100), finding("straggler", usd=300)], [finding(usd=150), finding("plateau", usd=150)])
    assert answer["usd_error"] == 0.25
    assert scored([finding(usd=100)], [finding(usd_micro=None)])["usd_error"] == 1.0


class TestStates:
    def test_state_error_is_half_of_the_differences_over_the_total(self):
        true = [cell("train", 6), cell("hang", 2), cell("free", 2, None)]
        found = [cell("train", 7), cell("hang", 1), cell("free", 2, None)]
        answer = scored(true_cells=true, found_cells=found)
        assert answer["state_error"] == 0.1
        assert answer["states"] == [
            {"state": "train", "truth_gpu_ms": 6 * HOUR, "found_gpu_ms": 7 * HOUR},
            {"state": "hang", "truth_gpu_ms": 2 * HOUR, "found_gpu_ms": HOUR},
            {"state": "free", "truth_gpu_ms": 2 * HOUR, "found_gpu_ms": 2 * HOUR},
        ]

    def test_state_error_counts_other_hours_and_workloads(self):
        assert scored(true_cells=[cell("train", 4)], found_cells=[cell("train", 4, hour=1)])["state_error"] == 1.0
        assert scored(true_cells=[cell("train", 4)], found_cells=[cell("train", 4, "mistral")])["state_error"] == 1.0

    @pytest.mark.parametrize(
        ("true", "found"),
        [
            ({"train": 5, "evaluate": 1, "diverged": 1, "lost_work": 1}, {"active": 8}),
            ({"train": 5, "data_stall": 3}, {"active": 8}),
            ({"train": 5, "data_stall": 3}, {"active": 6, "starved": 2}),
            ({"hang": 3, "checkpoint": 2}, {"hang": 1, "idle_held": 1, "starved": 2, "active": 1}),
            ({"infer": 3, "idle_held": 2, "unused_device": 1}, {"infer": 3, "idle_held": 2, "unused_device": 1}),
        ],
    )
    def test_states_that_gpu_telemetry_cannot_distinguish_are_right(self, true, found):
        cells = [[cell(state, hours) for state, hours in side.items()] for side in (true, found)]
        assert scored(true_cells=cells[0], found_cells=cells[1], evidence="gpu")["state_error"] == 0.0
        assert scored(true_cells=cells[0], found_cells=cells[1])["state_error"] == (
            0.0
            if "infer" in true
            else 1.0 - (sum(min(true[state], found.get(state, 0)) for state in true) / sum(true.values()))
        )

    @pytest.mark.parametrize(
        ("true", "found", "error"),
        [
            ({"train": 8}, {"active": 6, "starved": 2}, 0.25),  # a GPU at work does not look starved
            ({"data_stall": 8}, {"idle_held": 8}, 1.0),
            ({"idle_held": 8}, {"hang": 8}, 1.0),
            ({"train": 4, "hang": 4}, {"active": 8}, 0.5),
        ],
    )
    def test_other_states_are_wrong(self, true, found, error):
        cells = [[cell(state, hours) for state, hours in side.items()] for side in (true, found)]
        assert scored(true_cells=cells[0], found_cells=cells[1], evidence="gpu")["state_error"] == error

    def test_kubernetes_alone_shows_only_the_holder(self):
        true = [cell("train", 5), cell("hang", 1), cell("startup", 2), cell("gang_wait", 1), cell("free", 1, None)]
        found = [cell("unobserved", 7), cell("startup", 1), cell("gang_wait", 1), cell("free", 1, None)]
        assert scored(true_cells=true, found_cells=found, evidence="kubernetes")["state_error"] == 0.0
        busy = [cell("unobserved", 7), cell("startup", 1), cell("gang_wait", 1), cell("unhealthy", 1, None)]
        assert scored(true_cells=true, found_cells=busy, evidence="kubernetes")["state_error"] == 0.1


def best_fit(true, found, looks_like):
    """The most time of a cell that can be right: a flow from states to what they may look like."""
    left_true, left_found = dict(true), dict(found)
    flow = {(a, b): 0 for a in true for b in looks_like.get(a, (a,))}

    def push(state, tried):
        for a, b in flow:
            if a == state and b not in tried:
                tried.add(b)
                if left_found.get(b, 0):
                    left_found[b] -= 1
                    flow[a, b] += 1
                    return True
                for other, same in flow:
                    if same == b and flow[other, b] and push(other, tried):
                        flow[other, b] -= 1
                        flow[a, b] += 1
                        return True
        return False

    for state in true:
        while left_true[state] and push(state, set()):
            left_true[state] -= 1
    return sum(flow.values())


small_cells = st.dictionaries(st.sampled_from([s.name for s in STATES]), st.integers(1, 4), min_size=1, max_size=6)


@given(evidence=st.sampled_from(["full", "gpu", "kubernetes"]), true=small_cells, found=small_cells)
def test_state_error_uses_the_best_assignment(evidence, true, found):
    looks_like = scoring._LOOKS_LIKE[evidence]
    seen = scoring._as_observed(true, found, looks_like)
    assert sum(seen.values()) == sum(true.values())
    assert sum(min(ms, found.get(state, 0)) for state, ms in seen.items()) == best_fit(true, found, looks_like)


class TestTruthsThatAreNone:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"evidence": "magic"}, "its evidence is 'magic'"),
            ({"cells": [{"state": "train"}]}, "lack 'workload_uid'"),
            ({"cells": [cell("asleep", 1)]}, "'asleep' is not a state"),
            ({"findings": [{"cause": "hang"}]}, "lack 'workload'"),
            ({"findings": [finding(**{"from": "yesterday"})]}, "yesterday"),
        ],
    )
    def test_invalid_truth_gives_the_reason(self, change, message):
        with pytest.raises(TruthError, match=message):
            score(truth() | change, {"findings": [finding()]}, [])

    @pytest.mark.parametrize("window", [None, {}, {"from": "2026-01-01T00:00:00Z", "to": "soon"}])
    def test_truth_without_a_time_range_is_rejected(self, window):
        with pytest.raises(TruthError, match="its window lacks"):
            truth_window(truth() | {"window": window})


@pytest.fixture(scope="module")
def hung(tmp_path_factory):
    """A night with a hang, its answer of `why`, and its cells."""
    reports = [event("stuck", 40, rank, step=3999 - (rank == 2)) for rank in range(4)]
    windows = [w for rank in range(4) for w in steps(rank, 0, 40, forward_ms=60_000)]
    window = TimeRange(at(0), at(120))
    with Store(tmp_path_factory.mktemp("hung"), create=True) as store:
        store.append([*cluster(), *job(), *run(), *windows, *reports])
        build(store, Settings(), now_ms=at(120))
        return why(store, window, Settings(), zone=UTC), ledger_cells(store, window)


def test_score_of_a_night_against_its_truth(hung):
    answer, cells = hung
    hang = finding(from_min=40, to_min=120, culprit={"rank": 2, "node": "node-1"}, usd_micro=19_200_000)
    true = [cell("train", 4 * 40 / 60), cell("hang", 4 * 20 / 60), cell("hang", 4, hour=1)]
    assert answer["total"]["gpu_ms"] == sum(c["gpu_ms"] for c in cells)
    result = score(truth([hang], true), answer, cells)
    assert (*figures(result), result["culprit"], result["state_error"], result["usd_error"]) == (
        1.0,
        1.0,
        1.0,
        0.0,
        0.0,
    )
    other = deepcopy(true)
    other[0]["state"] = "evaluate"
    assert score(truth([hang], other), answer, cells)["state_error"] == 0.3333
