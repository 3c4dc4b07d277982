"""From the spool to a server, whatever the server does."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.train.ship import sender as sending
from pyrometer.train.ship import target as targets
from pyrometer.train.ship.sender import Sender
from pyrometer.train.ship.spool import Spool
from pyrometer.train.ship.target import FolderTarget, HttpTarget, PostOutcome, TargetError, target_of
from tests.support.otlp_server import Collector, decoded, logs, plain, points, spans
from tests.support.rank_processes import environment, python, rank


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch):
    monkeypatch.setattr(sending, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(sending, "MAX_PAUSE_S", 0.01)
    monkeypatch.setattr(sending, "EVERY_S", 0.01)
    monkeypatch.setattr(sending, "COLLECT_EVERY_S", 0.01)
    monkeypatch.delenv("PYROMETER_REDACT", raising=False)


@pytest.fixture
def spool(tmp_path) -> Spool:
    return Spool(tmp_path / "spool").make()


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


def who(number: int) -> dict:
    return {"run": "r", "launch": "l", "rank": number}


def messages(first: int, count: int) -> list[tuple[str, dict]]:
    """One of each signal for every number."""
    made: list[tuple[str, dict]] = []
    for n in range(first, first + count):
        made.append(("event", {"time_ms": 1000 + n, "kind": "checkpoint_saved", "step": n}))
        made.append(("metric", {"time_ms": 1000 + n, "name": "loss", "value": 0.5, "step": n}))
        made.append(
            ("span", {"start_ns": n, "duration_ns": 1, "name": "s", "trace_id": f"{n:032x}", "span_id": f"{n:016x}"})
        )
    return made


def received(taken: list[tuple[str, bytes]]) -> dict[tuple[str, int], list[int]]:
    """Numbers by signal and rank, in the order in which they came; a body that came twice counts once."""
    once = list(dict.fromkeys(taken))
    found: dict[tuple[str, int], list[int]] = {}
    for resource, record in logs(once):
        found.setdefault(("log", resource["pyrometer.rank"]), []).append(plain(record.attributes)["pyrometer.step"])
    for resource, _, point in points(once):
        found.setdefault(("metric", resource["pyrometer.rank"]), []).append(plain(point.attributes)["pyrometer.step"])
    for resource, span in spans(once):
        found.setdefault(("span", resource["pyrometer.rank"]), []).append(span.start_time_unix_nano)
    return found


def started(spool: Spool, url: str, **options) -> Sender:
    sender = Sender(spool, HttpTarget(url, **options))
    sender.start()
    return sender


# -- the law ----------------------------------------------------------------------------------------------------------

MOODS = ("ok", "partial", "500", "503", "408", "429", "302", "drop", "lost")


@settings(max_examples=15)
@given(
    moods=st.lists(st.sampled_from(MOODS), max_size=25),
    parts=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=12),
    restart=st.integers(0, 12),
)
@pytest.mark.heavy
def test_every_message_arrives_once_and_in_order_whatever_the_server_does(tmp_path_factory, moods, parts, restart):
    spool = Spool(tmp_path_factory.mktemp("law") / "spool").make()
    collector = Collector(list(moods))
    sender = started(spool, collector.url)
    counts: dict[int, int] = {}
    for number, (which, count) in enumerate(parts):
        if number == restart:  # a sender that ends with things to do is followed by another
            sender.close()
            spool = Spool(spool.folder)
            sender = started(spool, collector.url)
        first = counts.get(which, 0)
        spool.put(who(which), messages(first, count))
        counts[which] = first + count
    left = sender.flush(20)
    sender.close()
    collector.close()
    assert left == (0, 0, "")
    assert received(collector.taken) == {
        (signal, which): list(range(count)) for which, count in counts.items() for signal in ("log", "metric", "span")
    }


# -- a server that is absent, slow, ill, killed -----------------------------------------------------------------------


def test_sender_waits_for_an_absent_server(spool, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    spool.put(who(0), messages(0, 3))
    sender = started(spool, f"http://127.0.0.1:{port}")
    left = sender.flush(0.3)
    assert left.files > 0
    assert "refused" in left.error  # the connection was
    collector = Collector(port=port)
    assert sender.flush(20).files == 0
    sender.close()
    collector.close()
    assert received(collector.taken)["log", 0] == [0, 1, 2]
    assert "does not accept telemetry at the moment: Connection refused" in (spool.folder / "sender.log").read_text()


def test_restarted_server_receives_the_rest(spool, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def serve() -> subprocess.Popen:
        script = Path(__file__).parents[2] / "support" / "otlp_server.py"
        process = subprocess.Popen(
            [sys.executable, script, str(port), kept], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline().startswith("http")
        return process

    server = serve()
    sender = started(spool, f"http://127.0.0.1:{port}")
    for number in range(5):
        spool.put(who(0), messages(number, 1))
    while not list(kept.iterdir()):
        time.sleep(0.01)
    server.kill()
    server.communicate()
    for number in range(5, 10):
        spool.put(who(0), messages(number, 1))
    server = serve()
    assert sender.flush(20).files == 0
    sender.close()
    server.kill()
    server.communicate()
    taken = [path.read_bytes().split(b"\n", 1) for path in sorted(kept.iterdir())]
    assert received([(path.decode(), body) for path, body in taken]) == {
        (signal, 0): list(range(10)) for signal in ("log", "metric", "span")
    }


def test_silent_server_delays_only_its_own_requests(spool, monkeypatch):
    monkeypatch.setattr(targets, "RESPONSE_S", 0.1)
    silent = socket.create_server(("127.0.0.1", 0))
    spool.put(who(0), messages(0, 1))
    target = HttpTarget(f"http://127.0.0.1:{silent.getsockname()[1]}", response_s=0.1)
    answer = target.post("1-1.logs.json.gz", b"x")
    assert answer.outcome is PostOutcome.RETRY
    assert "timed out" in answer.text
    silent.close()


def test_refused_body_is_set_aside_and_the_next_is_sent(spool, collector):
    collector.moods = ["400"]
    spool.put(who(0), messages(0, 1)[:1])
    sender = started(spool, collector.url)
    collector.wait_for(1, include_refused=True)
    spool.put(who(0), messages(1, 1)[:1])
    left = sender.flush(10)
    sender.close()
    assert (left.files, left.refused) == (0, 1)
    assert received(collector.taken) == {("log", 0): [1]}
    (refused,) = spool.refused.iterdir()
    assert received([("/v1/logs", refused.read_bytes())]) == {("log", 0): [0]}
    log = (spool.folder / "sender.log").read_text()
    assert log.count("refused telemetry") == 1
    assert "\x1b" not in log  # the text of a server cannot control a terminal


def test_partial_rejection_is_logged_and_not_retried(spool, collector):
    collector.moods = ["partial"]
    spool.put(who(0), messages(0, 1)[:1])
    sender = started(spool, collector.url)
    assert sender.flush(10) == (0, 0, "")
    sender.close()
    assert len(collector.requests) == 1
    assert "1 records were rejected: too old" in (spool.folder / "sender.log").read_text()


# -- how it asks ------------------------------------------------------------------------------------------------------


def test_requests_follow_the_otlp_http_protocol(spool, collector):
    spool.put(who(0), messages(0, 1))
    sender = started(spool, f"{collector.url}/prefix/", token="secret-1\n")
    assert sender.flush(10).files == 0
    sender.close()
    assert sorted(path for path, _ in collector.requests) == [
        "/prefix/v1/logs",
        "/prefix/v1/metrics",
        "/prefix/v1/traces",
    ]
    for _, headers in collector.requests:
        assert headers["Content-Type"] == "application/json"
        assert headers["Content-Encoding"] == "gzip"
        assert headers["Authorization"] == "Bearer secret-1"
    for path, body in collector.taken:
        assert decoded(path, body).ByteSize() > 0


def test_token_is_not_written_to_disk_or_errors(spool, collector):
    collector.moods = ["401", "500"]
    spool.put(who(0), messages(0, 1))
    sender = started(spool, collector.url, token="secret-2")
    sender.flush(10)
    sender.close()
    assert not [path for path in spool.folder.rglob("*") if path.is_file() and b"secret-2" in path.read_bytes()]
    with pytest.raises(TargetError) as raised:
        HttpTarget(collector.url, token="secret\n-3")
    assert "secret" not in str(raised.value)


# -- a data folder ----------------------------------------------------------------------------------------------------


def test_folder_target_writes_whole_files_in_order(spool, tmp_path):
    spool.put(who(0), messages(0, 2))
    sender = Sender(spool, target_of({"PYROMETER_ENDPOINT": (tmp_path / "a folder").as_uri()}))
    sender.start()
    spool.put(who(0), messages(2, 2))
    assert sender.flush(10) == (0, 0, "")
    sender.close()
    inbox = tmp_path / "a folder" / "inbox" / "otlp"
    taken = [(f"/v1/{path.name.split('.')[-3]}", path.read_bytes()) for path in sorted(inbox.iterdir())]
    assert received(taken) == {(signal, 0): [0, 1, 2, 3] for signal in ("log", "metric", "span")}
    assert (tmp_path / "a folder").stat().st_mode & 0o777 == 0o700


def test_folder_target_prefers_the_server_of_the_folder(tmp_path, collector):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "server.json").write_text(json.dumps({"url": collector.url, "token": "view", "pid": 1}))
    target = FolderTarget(folder)
    assert target.post("1-1.logs.json.gz", b"x").outcome is PostOutcome.ACCEPTED
    assert not (folder / "inbox").exists()
    assert collector.requests[0][1]["Authorization"] == "Bearer view"
    collector.moods = ["403"]
    assert target.post("1-2.logs.json.gz", b"y").outcome is PostOutcome.ACCEPTED
    assert target.post("1-3.logs.json.gz", b"z").outcome is PostOutcome.ACCEPTED
    assert {path.name: path.read_bytes() for path in (folder / "inbox/otlp").iterdir()} == {
        "1-2.logs.json.gz": b"y",
        "1-3.logs.json.gz": b"z",
    }


def test_folder_target_ignores_the_address_of_a_dead_server(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "server.json").write_text(json.dumps({"url": url, "token": "t", "pid": 1}))
    assert FolderTarget(tmp_path).post("1-1.logs.json.gz", b"x").outcome is PostOutcome.ACCEPTED
    assert (tmp_path / "inbox/otlp/1-1.logs.json.gz").read_bytes() == b"x"


def test_unwritable_folder_is_retried(tmp_path):
    (tmp_path / "file").write_text("")
    answer = FolderTarget(tmp_path / "file").post("1-1.logs.json.gz", b"x")
    assert answer.outcome is PostOutcome.RETRY
    assert "cannot be written" in answer.text


# -- what is on its way, and what is not ------------------------------------------------------------------------------


def test_redacted_texts_are_not_in_bodies_to_send(spool, monkeypatch, tmp_path):
    monkeypatch.setenv("PYROMETER_REDACT", "stacks, samples")
    spool.put(who(0), [("event", {"time_ms": 1, "kind": "stuck", "message": "File secret.py"})])
    spool.put(who(0), [("batch", {"time_ms": 1, "send_index": 1, "samples": ["patient-7"]})])
    spool.acquire()
    Sender(spool, FolderTarget(tmp_path / "data")).collect()
    text = b"".join(gzip.decompress(path.read_bytes()) for path in spool.bodies())
    assert b"redacted" in text
    assert b"secret" not in text
    assert b"patient" not in text


def test_few_bodies_are_prepared_ahead(spool, tmp_path, monkeypatch):
    monkeypatch.setattr(sending, "PARTS_BYTES", 1)
    for number in range(30):
        spool.put(who(0), messages(number, 1))
    spool.acquire()
    Sender(spool, FolderTarget(tmp_path / "data")).collect()
    assert sending.MAX_BODIES_AHEAD <= len(spool.bodies()) < sending.MAX_BODIES_AHEAD + 3
    assert len(spool.parts()) > 20


def test_full_disk_causes_no_duplicates(spool, tmp_path, monkeypatch):
    spool.put(who(0), messages(0, 2))
    spool.acquire()
    sender = Sender(spool, FolderTarget(tmp_path / "data"))
    add, room = spool.add_body, [True, False]

    def full(signal, packed):
        if not room.pop(0):
            raise OSError(28, "No space left on device")
        return add(signal, packed)

    with monkeypatch.context() as patch:
        patch.setattr(spool, "add_body", full)
        with pytest.raises(OSError, match="No space"):
            sender.collect()
    assert spool.bodies() == []
    sender.collect()
    taken = [(f"/v1/{path.name.split('.')[-3]}", path.read_bytes()) for path in spool.bodies()]
    assert received(taken) == {(signal, 0): [0, 1] for signal in ("log", "metric", "span")}


def test_second_sender_waits_for_the_first(spool, collector):
    first = started(spool, collector.url)
    second_spool = Spool(spool.folder)
    second = started(second_spool, collector.url)
    assert spool.held
    assert not second_spool.held
    second_spool.put(who(1), messages(0, 1))
    assert second.flush(10).files == 0  # the first one brought it over
    first.close()
    spool.put(who(0), messages(0, 1))
    assert second.flush(10).files == 0
    assert second_spool.held
    second.close()
    assert received(collector.taken) == {(s, r): [0] for s in ("log", "metric", "span") for r in (0, 1)}


# -- next to the ranks ------------------------------------------------------------------------------------------------

START = (
    "from pyrometer.train.ship.sender import start_beside; "
    "start_beside(spool.folder, os.environ['PYROMETER_ENDPOINT'])\n"
)


@pytest.mark.heavy
def test_sender_process_exits_after_the_last_rank(tmp_path, collector):
    process = rank(
        START + "spool.put(identity, [('event', {'time_ms': 5, 'kind': 'checkpoint_saved', 'step': 1})])\n"
        "sys.stdin.read()\nhere.view[ring.ENDED] = 1",
        tmp_path,
        PYROMETER_ENDPOINT=collector.url,
        PYROMETER_TOKEN="t",
    )
    collector.wait_for(1)
    spool = Spool(tmp_path / "spool")
    assert not spool.acquire()  # the sender runs while the rank runs
    process.communicate("")
    end = time.monotonic() + 15
    while not spool.acquire():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert list(spool.ranks.iterdir()) == []
    assert received(collector.taken) == {("log", 0): [1]}


@pytest.mark.heavy
def test_sender_process_is_started_once_per_spool(tmp_path, collector):
    script = START + "print('began' if _ else 'served', flush=True); sys.stdin.read()"
    script = script.replace("; start_beside(", "; _ = start_beside(", 1)
    one = rank(script, tmp_path, PYROMETER_ENDPOINT=collector.url)
    assert one.stdout.readline() == "began\n"
    spool = Spool(tmp_path / "spool")
    while spool.acquire():  # until the sender has started
        spool.release()
        time.sleep(0.01)
    other = rank(script, tmp_path, PYROMETER_ENDPOINT=collector.url, RANK="1")
    assert other.stdout.readline() == "served\n"
    for process in (one, other):
        process.kill()
        process.communicate()
    end = time.monotonic() + 15
    while not spool.acquire():
        assert time.monotonic() < end
        time.sleep(0.05)
    outcomes = {
        resource["pyrometer.rank"]: plain(record.attributes)["pyrometer.outcome"]
        for resource, record in logs(collector.taken)
        if record.event_name == "pyrometer.run"
    }
    assert outcomes == {0: "killed", 1: "killed"}


def test_sender_process_reports_an_invalid_endpoint(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "pyrometer.train.ship.sender"],
        capture_output=True,
        text=True,
        env=environment(tmp_path, PYROMETER_ENDPOINT="nonsense"),
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert (
        result.stderr == "pyrometer: PYROMETER_ENDPOINT 'nonsense' is not an address. Example: http://127.0.0.1:8411\n"
    )


@pytest.mark.heavy
def test_parts_of_an_earlier_sender_are_sent_first(tmp_path, collector):
    spool = Spool(tmp_path / "spool").make()
    spool.put(who(0), messages(0, 2))
    process = python(
        "import sys; from pyrometer.train.ship.sender import main; sys.exit(main())",
        tmp_path,
        PYROMETER_ENDPOINT=collector.url,
    )
    assert process.wait(20) == 0
    process.communicate()
    assert received(collector.taken) == {(signal, 0): [0, 1] for signal in ("log", "metric", "span")}
    assert not [*spool.out.iterdir(), *spool.send.iterdir()]
