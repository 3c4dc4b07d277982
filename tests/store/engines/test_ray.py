"""A lake in a bucket of a real object store, and on a real Ray cluster of two nodes: the same answers, to the digit."""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pyrometer.account.closing.closing_months import close
from pyrometer.account.query import fleet
from pyrometer.account.query.time_range import zone_of
from pyrometer.questions.registry import NotFoundError
from pyrometer.store.engines import Engine, EngineError, Local, engine_of
from pyrometer.store.lake import Cache, LakeError, LakeStorage, lake_reader, manifest_of
from tests.support.hand_lakes import (
    TARIFF,
    as_text,
    copy_to_lake,
    facts,
    fill_store,
    folder_answer,
    lake_answer,
    random_question,
    sum_and_die_once,
)
from tests.support.hand_ledgers import FIRST, ms_of, next_month
from tests.support.histories import folder

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]
NAMES = ("east", "north", "west")
SEED = 20_260_901


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket of a server on loopback; where it is and what it asks for is in the environment, as usual."""
    pytest.importorskip("moto", reason="moto[s3] is not installed: pip install -e '.[heavy]'")
    from moto.server import ThreadedMotoServer
    from pyarrow.fs import S3FileSystem

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "AKIATESTING",
            "AWS_SECRET_ACCESS_KEY": "hunter2",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            patch.setenv(name, value)
        store = S3FileSystem(endpoint_override=f"{host}:{port}", scheme="http", allow_bucket_creation=True)
        store.create_dir("lakes")
        yield "s3://lakes/prod"
    server.stop()


@pytest.fixture(scope="module")
def lakes(bucket, tmp_path_factory) -> dict[str, LakeStorage]:
    """Three clusters whose objects have the same identities, in a folder and in a bucket."""
    found = {"folder": LakeStorage(str(tmp_path_factory.mktemp("lake"))), "bucket": LakeStorage(bucket)}
    for number, name in enumerate(NAMES):
        with folder() as store:
            fill_store(store, facts(SEED + number))
            for place in found.values():
                copy_to_lake(store, place, name)
    return found


@pytest.fixture(scope="module")
def ray(bucket) -> Iterator[Engine]:
    """Two nodes of one CPU each; their workers find what tests find."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'pyrometer[ray]'")
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}.items():
            patch.setenv(name, value)
        node = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=node)
        try:
            cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
            yield engine_of("ray", cluster.address)
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(fleet, "ROWS_OF_A_PIECE", 13)


def answer_text(*arguments, **more) -> str:
    try:
        return as_text(lake_answer(*arguments, **more))
    except NotFoundError as error:
        return str(error)


def test_all_ways_to_read_a_lake_give_one_answer(lakes, ray, tmp_path) -> None:
    chance = random.Random(SEED)
    for number in range(5):
        question = random_question(chance)
        expected = answer_text(lakes["folder"], question)
        assert answer_text(lakes["folder"], question, engine=ray) == expected, question
        assert (
            answer_text(lakes["bucket"], question, cache=tmp_path, engine=ray if number < 2 else Local()) == expected
        ), question
    with folder() as whole:
        fill_store(whole, *(facts(SEED + number, name) for number, name in enumerate(NAMES)))
        question = {"by": "team,state", "all": "1"}
        assert answer_text(lakes["folder"], question, engine=ray) == as_text(folder_answer(whole, question))


def test_killing_a_worker_does_not_change_the_answer(lakes, ray, tmp_path) -> None:
    class Killing:
        splits = True

        def map(self, function, work, progress):
            return ray.map(
                sum_and_die_once, [((about, str(tmp_path / "died")), piece) for about, piece in work], progress
            )

    question = {"by": "experiment,day", "all": "1"}
    assert answer_text(lakes["folder"], question, engine=Killing()) == answer_text(lakes["folder"], question)
    assert (tmp_path / "died").read_text() == "killed\nagain\n"


def test_a_node_that_cannot_see_the_folder_is_named(lakes, ray, tmp_path) -> None:
    class Elsewhere:
        """The folder is on the machine that asks, and not on the others."""

        splits = True

        def map(self, function, work, progress):
            moved = [(about._replace(url=str(tmp_path / "mnt")), piece) for about, piece in work]
            return ray.map(function, moved, progress)

    with pytest.raises(EngineError, match=r"Node [0-9.]+ of the Ray cluster: .*/mnt/east cannot be seen here"):
        lake_answer(lakes["folder"], {"all": "1"}, engine=Elsewhere())


def test_closed_months_and_files_of_a_bucket(bucket, tmp_path, monkeypatch) -> None:
    place, month = LakeStorage(f"{bucket}-closed"), f"{FIRST:%Y-%m}"
    late_ms = ms_of(FIRST + timedelta(days=45))
    with folder() as store:
        fill_store(store, facts(SEED))
        close(store, TARIFF, month, zone_of("UTC"), now_ms=late_ms, by="ann")
        copy_to_lake(store, place, "here")
        for question in ({"month": month}, {"month": f"{next_month(FIRST):%Y-%m}"}):
            assert as_text(lake_answer(place, question, cache=tmp_path)) == as_text(folder_answer(store, question))
        parts = manifest_of(place, "here").parts
    cached = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in cached} == {".parquet", ".json"}
    # it is bounded: what was not used for longest goes first, what may be in use stays
    small = Cache(tmp_path, sum(path.stat().st_size for path in cached) - 1)
    oldest = cached[0]
    os.utime(oldest, (1, 1))
    missing = next(
        part for part in parts if part.kind == "ledger_row" and not list(tmp_path.rglob(Path(part.path).name))
    )
    (fetched,) = small.paths(place, "here", [(missing.path, missing.bytes)])
    assert fetched.stat().st_size == missing.bytes
    assert not oldest.exists()
    monkeypatch.setattr(lake_reader, "IN_USE_S", -1.0)
    Cache(tmp_path, 0)._make_room()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_an_unreachable_object_store_is_reported_without_secrets(bucket, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(LakeError) as away:
        lake_answer(LakeStorage(bucket), {})
    assert str(away.value) == f"The lake {bucket} cannot be read now: network connection."
    monkeypatch.undo()
    with pytest.raises(LakeError, match="cannot be read now: no such bucket"):
        lake_answer(LakeStorage("s3://not-there/x"), {})
