"""Objects of a cluster, nearly right: anybody who may create one writes most of what is read here."""

from __future__ import annotations

import asyncio
import copy
import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ObservedObject
from pyrometer.collect.kubernetes.watch import Resource, Watch
from pyrometer.identify.kubernetes.cluster import Cluster
from pyrometer.model.records import Pod
from pyrometer.model.settings import Settings
from tests.support.effort import EFFORT
from tests.support.fuzz_targets import check_storable
from tests.support.mangle import as_json, mangled_value

EXAMPLES = settings(max_examples=150 * EFFORT, suppress_health_check=list(HealthCheck))
IDENTIFY = Path(__file__).parents[1] / "identify"
MADE = json.loads((IDENTIFY / "kubeflow" / "made.json").read_text())
THINGS = yaml.safe_load((Path(__file__).parent / "objects.yaml").read_text())
NOW_MS = 1_794_700_000_000
NODE = THINGS["node"]
GOLDEN = [yaml.safe_load(path.read_text())["owners"] for path in sorted((IDENTIFY / "golden").glob("*.yaml"))]
OWNERS = [
    THINGS["workflow"],
    THINGS["train_job"],
    MADE["experiment"],
    MADE["trial"],
    *(one for owners in GOLDEN for one in owners),
]
KINDS: dict[str, tuple[type, list[Any]]] = {
    "pod": (objects.PodObject, [THINGS["pod"]]),
    "node": (objects.NodeObject, [NODE]),
    "event": (objects.EventObject, [THINGS["event"]]),
    "claim": (objects.ResourceClaim, [THINGS["claim"]]),
    "queued": (objects.QueuedWorkload, [THINGS["queued"]]),
    "owner": (objects.OwnerObject, OWNERS),
    "namespace": (objects.Namespace, [THINGS["namespace"]]),
}
ANY_OBJECT = st.sampled_from(sorted(KINDS)).flatmap(
    lambda kind: st.tuples(st.just(kind), mangled_value(KINDS[kind][1]))
)


def _pod(**metadata: Any) -> dict[str, Any]:
    pod = copy.deepcopy(THINGS["pod"])
    pod["metadata"] |= metadata
    return pod


def decoded(kind: str, thing: Any) -> Any:
    """As a watch decodes it; None where it cannot."""
    try:
        return msgspec.json.decode(as_json(thing), type=KINDS[kind][0])
    except (msgspec.MsgspecError, UnicodeError):
        return None


@EXAMPLES
@given(st.lists(ANY_OBJECT, min_size=1, max_size=4), st.booleans())
def test_mangled_objects_do_not_affect_valid_ones(things, gone):
    cluster = Cluster("test", Settings())
    records: list[Any] = []
    owners = []
    for kind, thing in [("node", NODE), *things, *things]:
        found = decoded(kind, thing)
        if found is None:
            continue
        if kind == "owner":
            found = cluster.shrink(found)
            owners.append(found)
        chain = tuple(owners[:3]) if kind in ("pod", "queued") else ()
        records += cluster.take(ObservedObject(found, NOW_MS, gone=gone, chain=chain))
        cluster.tick(NOW_MS)
    good = decoded("pod", _pod(name="good", uid="good"))
    records += cluster.take(ObservedObject(good, NOW_MS + 1))
    cluster.tick(NOW_MS + 10**8)
    assert any(isinstance(one, Pod) and one.pod_uid == "good" for one in records)
    check_storable(records)


@EXAMPLES
@given(st.lists(ANY_OBJECT, min_size=1, max_size=4))
def test_a_watch_skips_undecodable_lines(things):
    """Valid objects in the same list, and in the lines after it, are read."""
    for kind, (type_, seeds) in KINDS.items():
        listed = [thing for of_kind, thing in things if of_kind == kind]
        if listed:
            watch = Watch(_Lists([seeds[0], *listed, seeds[0]]), Resource("", "v1", "things", "Thing", type_))
            seen = [page for page in asyncio.run(_first_page(watch)) if isinstance(page, ObservedObject)]
            assert len(seen) + watch.unreadable == len(listed) + 2
            assert len(seen) >= 2
            for thing in (*listed, seeds[0]):
                change = watch._line(b'{"type":"ADDED","object":' + as_json(thing) + b"}", NOW_MS)
            assert change is not None


class _Lists:
    """An API server that lists arbitrary objects."""

    def __init__(self, things: list[Any]) -> None:
        self._body = b'{"metadata":{"resourceVersion":"7"},"items":[%s]}' % b",".join(map(as_json, things))

    async def get(self, path: str, params: Any = None, accept: str = "") -> bytes:
        return self._body


async def _first_page(watch: Watch) -> list[Any]:
    async for page in watch._list():
        return page
    raise AssertionError("no page")


@pytest.mark.parametrize("amount", [str(2**63 - 1), 10**300, "9" * 400, "999999M"])
def test_absurd_gpu_counts_take_no_memory(amount):
    """Whoever may create a pod may ask for any number of GPUs, and name the node itself."""
    pod, node = _pod(uid="huge"), copy.deepcopy(NODE)
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": amount}}
    node["status"] = {"capacity": {"nvidia.com/gpu": amount, "nvidia.com/mig-1g.10gb": amount}}
    node["metadata"]["labels"] |= {"nvidia.com/gpu.count": "9" * 60, "nvidia.com/gpu.replicas": "9" * 60}
    tracemalloc.start()
    try:
        for nodes in ([NODE], [node]):
            cluster = Cluster("test", Settings())
            seen = [*(decoded("node", one) for one in nodes), decoded("pod", pod), decoded("pod", _pod())]
            check_storable([record for one in seen for record in cluster.take(ObservedObject(one, NOW_MS))])
        assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("took", ["1.1.1s", "9" * 400 + "h", "1e9s", "..s", "1m2.5s"])
def test_events_with_arbitrary_text_are_stored(took):
    cluster = Cluster("test", Settings())
    message = f'Successfully pulled image "a" in {took}'
    cluster.take(ObservedObject(decoded("pod", _pod()), NOW_MS))
    check_storable(cluster.take(ObservedObject(decoded("event", THINGS["event"] | {"message": message}), NOW_MS)))
