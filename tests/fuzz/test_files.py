"""Files and answers from elsewhere, nearly right: they are read, or refused with one sentence that names them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyrometer.collect.files.bills import BillError, days_of, read_bill
from pyrometer.collect.prometheus import api as prometheus
from pyrometer.collect.source import SourceError
from pyrometer.collect.trackers.mlflow import CurveReader, Mlflow
from pyrometer.train.ship.spool import Spool
from pyrometer.train.ship.target import _rejected, _retry_after_s
from pyrometer.train.steps import ring
from pyrometer.train.steps.ring import Ring, RingError
from pyrometer_datasets.recording import Recordings
from pyrometer_datasets.speedrun import SpeedrunLogs
from pyrometer_datasets.traces import OpenbTrace, PhillyTrace
from tests.support.effort import EFFORT
from tests.support.fuzz_targets import check_storable
from tests.support.mangle import as_json, mangled, mangled_value

EXAMPLES = settings(max_examples=60 * EFFORT, suppress_health_check=list(HealthCheck))
DATA = Path(__file__).parents[1] / "data"

OPENB = b"""name,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
whole,16384,2,1000,,LS,Running,0,3600,0
part,12288,1,460,,BE,Succeeded,60,720,120
waits,12288,1,1000,,LS,Pending,0,100,
"""
PHILLY = b"""timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.0,8,23608.0,6214e9
"""
SPEEDRUN = b"""nvidia-smi:
Thu Oct 10 23:58:24 2024
|   0  NVIDIA H100 80GB HBM3          On  | 00000000:60:00.0 Off |                    0 |
step:0/2 val_loss:10.9000 train_time:285ms step_avg:nanms
step:1/2 train_loss:9.9000 train_time:1285ms step_avg:nanms
step:2/2 train_loss:9.8000 train_time:2285ms step_avg:500.00ms
"""
FOCUS = b"""BilledCost,ChargePeriodStart,ChargeCategory,BillingCurrency,x_InstanceType,ConsumedQuantity,ConsumedUnit
98.32,2026-10-05T00:00:00Z,Usage,USD,p5.48xlarge,1,Hours
$1.5,2026-10-05,Tax,USD,,,
"""
AZURE = b"""Date,MeterSubCategory,Quantity,CostInBillingCurrency,UnitOfMeasure,BillingCurrency,AdditionalInfo
10/05/2026,ND H100,4,12.5,1 Hour,USD,"{""ServiceType"":""Standard_ND96isr_H100_v5""}"
"""


def delivered(source: Any) -> None:
    """All that a source brings is stored; it is one sentence otherwise, of the source or of the store."""

    async def read() -> list[Any]:
        return [record async for delivery in source.deliveries() for record in delivery.records]

    try:
        records = asyncio.run(read())
    except SourceError as error:
        check_error(error)
        return
    with suppress(ValueError, OverflowError, TypeError):  # which `Store.append` turns into a StoreError
        check_storable(records)


def check_error(error: Exception) -> None:
    """One sentence, and not a long one."""
    assert 0 < len(str(error)) < 2_000
    assert "\n" not in str(error)


def billed(path: Path) -> None:
    """An invoice."""
    for read in (lambda: read_bill(path, ["p5.48xlarge"]), lambda: days_of(path)):
        try:
            assert read()
        except BillError as error:
            check_error(error)


READERS: dict[str, tuple[Callable[[Path], None], str, list[bytes]]] = {
    "openb": (lambda path: delivered(OpenbTrace(path)), "trace.csv", [OPENB]),
    "philly": (lambda path: delivered(PhillyTrace(path)), "trace.csv", [PHILLY]),
    "speedrun": (lambda path: delivered(SpeedrunLogs(path)), "2024-10-10_Muon.log", [SPEEDRUN]),
    "bill": (billed, "bill.csv", [FOCUS, AZURE]),
}


@pytest.mark.parametrize("reader", READERS)
def test_mangled_settings_and_prices_give_short_errors(tmp_path, reader):
    read, name, seeds = READERS[reader]

    @EXAMPLES
    @given(mangled(seeds))
    def throw(content):
        (tmp_path / name).write_bytes(content)
        read(tmp_path / name)

    throw()


@EXAMPLES
@given(st.sampled_from(("gpu.csv", "steps.csv", "truth.json")), st.data())
def test_mangled_recordings_give_short_errors(tmp_path_factory, which, data):
    folder = tmp_path_factory.mktemp("recording", numbered=True)
    for ending in ("gpu.csv", "steps.csv", "truth.json"):
        content = (DATA / "h200" / f"a-{ending}").read_bytes()
        content = content if ending.endswith("json") else b"".join(content.splitlines(True)[:8])
        (folder / f"a-{ending}").write_bytes(data.draw(mangled([content])) if ending == which else content)
    delivered(Recordings(folder))


# -- answers ----------------------------------------------------------------------------------------------------------

AT_MS = 1_794_700_000_000
RUN = {
    "info": {
        "run_id": "r1",
        "run_name": "first",
        "experiment_id": "0",
        "status": "FINISHED",
        "start_time": AT_MS,
        "end_time": AT_MS,
    },
    "data": {
        "metrics": [
            {"key": "loss", "value": 0.5, "timestamp": AT_MS, "step": 1},
            {"key": "system/gpu_0_power", "value": "NaN", "timestamp": AT_MS, "step": 1},
        ],
        "params": [{"key": "lr", "value": "0.1"}],
        "tags": [{"key": "mlflow.runName", "value": "first"}],
    },
}
ANSWER = {
    "runs": [RUN],
    "run": RUN,
    "experiments": [{"experiment_id": "0", "name": "sft"}],
    "metrics": RUN["data"]["metrics"],
    "next_page_token": "",
    "error_code": "",
    "message": "",
}


def _answering(kind: type, body: bytes, status: int = 200) -> Any:
    """A client of a server that always answers the same. Made without its own connections, which take long to make."""
    transport = httpx.MockTransport(lambda request: httpx.Response(status, content=body))
    client = kind.__new__(kind)
    client.uri = client.url = "http://other.test"
    client._headers, client._settings = {}, None
    client._client = httpx.AsyncClient(base_url=client.url, transport=transport)
    return client


@EXAMPLES
@given(mangled_value([ANSWER]) | mangled([as_json(ANSWER)]), st.sampled_from((200, 400, 404, 500)))
def test_mangled_mlflow_answers_give_short_errors(answer, status):
    body = answer if isinstance(answer, bytes) else as_json(answer)

    async def ask() -> None:
        mlflow = _answering(Mlflow, body, status)
        experiments = await mlflow.experiments()
        curves = CurveReader(mlflow)
        async for found in mlflow.search(experiments or {"0": "sft"}, max_runs=5):
            assert all(isinstance(point.value, float) for point in await curves.points(found))

    try:
        asyncio.run(ask())
    except SourceError as error:
        check_error(error)


MATRIX = {
    "status": "success",
    "data": {
        "resultType": "matrix",
        "result": [
            {
                "metric": {"__name__": "DCGM_FI_DEV_GPU_TEMP", "gpu": "0", "Hostname": "a"},
                "values": [[1794700000.5, "0.25"], [1794700015, "NaN"]],
            }
        ],
    },
}


@EXAMPLES
@given(mangled_value([MATRIX]) | mangled([as_json(MATRIX)]))
def test_mangled_prometheus_answers_give_short_errors(answer):
    body = answer if isinstance(answer, bytes) else as_json(answer)

    async def ask() -> None:
        server = _answering(prometheus.Prometheus, body)
        for series in await server.raw("up", 0, 1_000):
            assert len(series.times_ms) == len(series.values)
        await server.labels("up", 0, 1_000)

    try:
        asyncio.run(ask())
    except SourceError as error:
        check_error(error)


# -- the SDK ----------------------------------------------------------------------------------------------------------


@EXAMPLES
@given(st.data())
def test_a_broken_ring_is_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("ring", numbered=True) / "1.ring"
    new = Ring.create(path, 4)
    for clock in (ring.MONOTONIC_NS, ring.WALL_NS, ring.MOVED_NS, ring.BEAT_NS, ring.PID):
        new.view[clock] = 7
    new.close()
    path.write_bytes(data.draw(mangled([path.read_bytes()])))
    try:
        found = Ring.open(path)
    except RingError:
        return
    assert found.snapshot() is not None
    assert len(found.column(0, 0, found.rows)) == found.rows
    found.close()


@pytest.mark.parametrize("content", [b"", b"\xff", b"launch\x00", "läunch".encode(), b"a" * 100_000])
def test_a_broken_launch_name_is_refused(tmp_path, content):
    spool = Spool(tmp_path / "spool").make()
    spool.first_launch("first")
    (written,) = spool.ranks.glob("*.launch")
    written.write_bytes(content)
    assert spool.first_launch("second")
    (spool.ranks / "x-1.launch").touch()
    spool.tidy()


@EXAMPLES
@given(mangled([b'{"partialSuccess":{"rejectedLogRecords":"3","errorMessage":"wrong time: 3"}}']))
def test_mangled_rejection_counts_are_accepted(body):
    assert len(_rejected(body)) <= 300


@pytest.mark.parametrize(
    "header", ["", "5", "-1", "NaN", "1e400", "Wed, 21 Oct 2099 07:28:00 GMT", "9" * 5_000, "\xff", "Mon"]
)
def test_retry_after_is_limited(header):
    assert 0 <= _retry_after_s(header) < 10**6
