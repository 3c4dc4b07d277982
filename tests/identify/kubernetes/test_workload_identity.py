"""Which pods are one job: a fixture for every kind, and the rules around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ObservedObject
from pyrometer.identify.kubernetes.cluster import Cluster
from pyrometer.identify.kubernetes.workload_identity import ungenerated
from pyrometer.identify.kubernetes.workload_kinds import RuleError
from pyrometer.model.records import Owner, Pod, Workload
from pyrometer.model.settings import Settings
from pyrometer.model.units import SHARE_WHOLE

NOW_MS = 1_790_000_000_000
GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.yaml"))


def seen_of(case: dict[str, Any], settings: Settings) -> tuple[Cluster, ObservedObject]:
    """A pod and its owners, as a watch and the chain above it would show them."""
    cluster = Cluster("test", settings)
    owners = case["owners"]
    chain = []
    references = [
        {
            "apiVersion": one["apiVersion"],
            "kind": one["kind"],
            "name": one["metadata"]["name"],
            "uid": one["metadata"]["uid"],
            "controller": one.pop("controller", True),
        }
        for one in owners
    ]
    for place, one in enumerate(owners):
        above = references[place + 1 : place + 2]
        thing = {**one, "metadata": {"namespace": "ns", "ownerReferences": above, **one["metadata"]}}
        chain.append(cluster.shrink(msgspec.convert(thing, objects.OwnerObject)))
    pod = case["pod"]
    gpus = pod.get("gpus", 8)
    container = {
        "name": "main",
        "resources": {"requests": {"nvidia.com/gpu": str(gpus)} if gpus else {}},
        "env": [{"name": name, "value": value} for name, value in pod.get("env", {}).items()],
    }
    meta = {"namespace": "ns", "uid": "pod-uid", "ownerReferences": references[:1], **pod["metadata"]}
    thing = msgspec.convert({"metadata": meta, "spec": {"containers": [container]}}, objects.PodObject)
    followed = chain if references and references[0]["controller"] else []
    return cluster, ObservedObject(thing, NOW_MS, chain=tuple(followed))


def identified(case: dict[str, Any], settings: Settings | None = None) -> dict[str, Any]:
    """What is written down about it, in the words of the fixtures."""
    cluster, seen = seen_of(case, settings or Settings())
    records = cluster.take(seen)
    workload = next(record for record in records if isinstance(record, Workload))
    pod = next(record for record in records if isinstance(record, Pod))
    assert pod.workload_uid == workload.workload_uid
    found = {
        "uid": workload.workload_uid,
        "kind": workload.kind,
        "group": workload.api_group,
        "name": workload.name,
        "rank": pod.rank,
        "attempt": pod.attempt,
        "gang": workload.gang_pods,
        "serves": workload.serves,
        "queue": workload.queue,
        "user": workload.user,
        "team": [workload.team, workload.team_rule],
        "experiment": [workload.experiment, workload.experiment_rule],
        "share": (pod.gpu_share or 0) / SHARE_WHOLE,
        "pipeline": [pod.pipeline_run, pod.pipeline_step, pod.pipeline_attempt],
        "trial": pod.trial_uid,
    }
    return {name: found[name] for name in case["expect"]}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_identify_reads_every_golden_manifest(path: Path) -> None:
    case = yaml.safe_load(path.read_text())
    assert identified(case) == case["expect"]


def test_owners_are_recorded_with_their_chain() -> None:
    case = yaml.safe_load((Path(__file__).parents[1] / "golden" / "trainjob.yaml").read_text())
    cluster, seen = seen_of(case, Settings())
    owners = [record for record in cluster.take(seen) if isinstance(record, Owner)]
    assert [(owner.kind, owner.controller_uid) for owner in owners] == [
        ("Job", "js-1"),
        ("JobSet", "train-1"),
        ("TrainJob", None),
    ]
    assert cluster.take(seen) == []  # no news


@pytest.mark.parametrize(
    ("name", "shorter"),
    [
        ("llama-sft", "llama-sft"),
        ("train-7x9k2", "train"),
        ("nightly-28912345", "nightly"),
        ("etl-1700000000-8hj2k", "etl"),
        ("v2-large", "v2-large"),
        ("bert-base", "bert-base"),
        ("resnet50", "resnet50"),
        ("12345678", "12345678"),
    ],
)
def test_ungenerated_removes_generated_suffixes(name: str, shorter: str) -> None:
    assert ungenerated(name) == shorter


class TestRulesOfOnesOwn:
    def rules(self, folder: Path, text: str) -> Settings:
        (folder / "rules.yaml").write_text(text)
        return Settings(workload_rules=str(folder / "rules.yaml"))

    def test_custom_kind_is_identified(self, tmp_path: Path) -> None:
        settings = self.rules(
            tmp_path,
            "- {kind: Sweep, group: example.com, serves: true, rank: label:index, attempt: label:try, gang: spec.size}",
        )
        case = {
            "owners": [
                {
                    "apiVersion": "example.com/v1",
                    "kind": "Sweep",
                    "metadata": {"name": "s", "uid": "s-1"},
                    "spec": {"size": 5},
                }
            ],
            "pod": {"metadata": {"name": "p", "labels": {"index": "4", "try": "1"}}},
            "expect": {"uid": "s-1", "rank": 4, "attempt": 2, "serves": True, "gang": 5},
        }
        assert identified(case, settings) == case["expect"]

    def test_custom_rule_replaces_the_bundled_one(self, tmp_path: Path) -> None:
        settings = self.rules(tmp_path, "- {kind: Deployment, group: apps, serves: false}")
        case = yaml.safe_load((Path(__file__).parents[1] / "golden" / "deployment.yaml").read_text())
        assert identified({**case, "expect": {"serves": False}}, settings) == {"serves": False}

    def test_custom_kind_can_end_the_chain(self, tmp_path: Path) -> None:
        settings = self.rules(tmp_path, "- {kind: Trial, group: kubeflow.org, ends: true}")
        case = yaml.safe_load((Path(__file__).parents[1] / "golden" / "katib.yaml").read_text())
        assert identified({**case, "expect": {"uid": "trial-1"}}, settings) == {"uid": "trial-1"}

    def test_custom_kind_can_have_a_label_as_key(self, tmp_path: Path) -> None:
        settings = self.rules(tmp_path, "- {kind: Slot, key: [annotation:lease, label:lease]}")
        case = {
            "owners": [],
            "pod": {"metadata": {"name": "p", "labels": {"lease": "L7"}}},
            "expect": {"uid": "test/ns/Slot/L7", "kind": "Slot", "name": "L7"},
        }
        assert identified(case, settings) == case["expect"]


def test_team_rules_apply_in_order() -> None:
    case = yaml.safe_load((Path(__file__).parents[1] / "golden" / "volcano_job.yaml").read_text())
    settings = Settings(team_rules=("annotation:nothing", "namespace", "queue"))
    assert identified({**case, "expect": {"team": None}}, settings) == {"team": ["ns", "namespace"]}


def test_invalid_team_rule_is_rejected() -> None:
    with pytest.raises(RuleError, match="Setting 'team_rules' has the rule 'lable:team'"):
        Cluster("test", Settings(team_rules=("lable:team",)))
