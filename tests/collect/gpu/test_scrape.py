"""Scraping real servers on this machine: successful scrapes, and all errors with one sentence each."""

from __future__ import annotations

import asyncio
import gzip
import logging
import re
import shutil
import ssl
import subprocess
import time
from contextlib import aclosing, asynccontextmanager, closing

import pytest

from pyrometer.collect.gpu.dcgm import Dcgm
from pyrometer.collect.gpu.scrape import CLOCK_LIMIT_MS, Scrapes, ScrapeTarget, gpu_exporters, node_exporters
from pyrometer.collect.nodes.node_exporter import NodeExporters
from pyrometer.identify.gpus.gpu_models import near_idle_power_w
from pyrometer.model.records import GpuSample, Slot
from pyrometer.store import Store
from tests.support.exporter_texts import Gpu, text_of

# anyio leaves this behind when a connection is given up before it was begun
pytestmark = pytest.mark.filterwarnings("ignore:coroutine 'connect_tcp:RuntimeWarning")

EVERY_S = 0.03
PATIENCE_S = 20.0
SECRET = "s3cret"  # must be seen nowhere


def reply(body, status="200 OK", **headers):
    """An answer as it goes over the wire."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {headers.pop('length', len(body))}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Exporter:
    """A server that answers every request with the same bytes, or with what a function of the request's head makes."""

    def __init__(self, answer):
        self.answer = answer
        self.heads = []
        self.url = ""
        self.sent = 0
        self.handlers = set()  # an event loop has only weak references to its tasks

    async def handle(self, reader, writer):
        self.handlers.add(asyncio.current_task())
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            answer = self.answer(head) if callable(self.answer) else self.answer
            if asyncio.iscoroutine(answer):
                answer = await answer
            for begin in range(0, len(answer), 2**16):
                writer.write(answer[begin : begin + 2**16])
                await writer.drain()
                self.sent += len(answer[begin : begin + 2**16])
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # the client closed the connection
        finally:
            writer.close()


@asynccontextmanager
async def exporter(answer, tls=None):
    one = Exporter(answer)
    server = await asyncio.start_server(one.handle, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    one.url = f"http{'s' if tls else ''}://127.0.0.1:{port}/metrics"
    try:
        yield one
    finally:
        server.close()


def scrapes(*targets, **options):
    listed = [target if isinstance(target, ScrapeTarget) else ScrapeTarget(target) for target in targets]
    dcgm = Dcgm({"node-a": "uid-a"}.get, near_idle_power_w)
    return Scrapes(lambda: listed, gpu_exporters(dcgm), **{"interval_s": EVERY_S, "answer_s": 5.0, **options})


@asynccontextmanager
async def running(source):
    """The source at work; gives the records that it has delivered so far."""
    records = []

    async def drain():
        async with aclosing(source.deliveries()) as deliveries:
            async for delivery in deliveries:
                records.extend(delivery.records)

    task = asyncio.create_task(drain())
    try:
        yield records
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def until(condition):
    """Waits for something to be so; what never comes is a failure."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, "it never came"
        await asyncio.sleep(0.005)


async def trouble_with(target, **options):
    """The reported error of a target that does not work."""
    source = scrapes(target, **options)
    async with running(source) as records:
        await until(lambda: any(state.error for state in source.states.values()))
    (state,) = source.states.values()
    assert state.up is False
    assert records == []
    return state.error


GOOD = reply(text_of([Gpu(0, pod="train-0"), Gpu(1)]))


# -- what goes well ---------------------------------------------------------------------------------------------------


def test_scrape_sets_time_and_node_of_samples(tmp_path):
    async def scenario():
        async with exporter(GOOD) as one:
            source = scrapes(one.url)
            before_ms = time.time_ns() // 1_000_000
            async with running(source) as records:
                await until(lambda: len(records) >= 6)
                (state,) = source.states.values()
                assert state.up
                assert source.shortcomings() == []
                assert {(use.node_uid, use.slot_index, use.pod) for use in source.uses()} == {("uid-a", 0, "train-0")}
            return records, before_ms

    records, before_ms = asyncio.run(scenario())
    samples = [record for record in records if isinstance(record, GpuSample)]
    assert {(s.node_uid, s.slot_index) for s in samples} == {("uid-a", 0), ("uid-a", 1)}
    assert all(before_ms <= s.time_ms <= before_ms + PATIENCE_S * 1000 for s in samples)
    assert sum(isinstance(record, Slot) for record in records) == 2  # reported once
    with closing(Store(tmp_path / "data", create=True)) as store:
        store.append(records)
        store.expose_all(["gpu_sample"])
        assert store.connection.execute("SELECT count(*) FROM gpu_sample").fetchone() == (len(samples),)


def test_scrape_target_node_overrides_labels():
    async def scenario():
        async with (
            exporter(reply(text_of([Gpu(host="container-4711")]))) as one,
            running(scrapes(ScrapeTarget(one.url, node="node-a"))) as records,
        ):
            await until(lambda: records)
            return records[0].node_uid

    assert asyncio.run(scenario()) == "uid-a"


def test_scrapes_follow_changing_targets():
    async def scenario():
        async with exporter(GOOD) as first, exporter(GOOD) as second:
            listed = [ScrapeTarget(first.url)]
            source = Scrapes(
                lambda: listed, gpu_exporters(Dcgm(lambda host: None, near_idle_power_w)), interval_s=EVERY_S
            )
            async with running(source):
                await until(lambda: first.heads)
                listed[:] = [ScrapeTarget(second.url)]
                await until(lambda: second.heads and list(source.states) == listed)
                requested = len(first.heads)
                await until(lambda: len(second.heads) > 3)
                assert len(first.heads) <= requested + 1

    asyncio.run(scenario())


def test_scrapes_limit_concurrent_requests():
    waiting, most = set(), []

    async def slow(head):
        waiting.add(head)
        most.append(len(waiting))
        await asyncio.sleep(0.002)
        waiting.remove(head)  # before it is answered
        return GOOD

    async def scenario():
        async with exporter(slow) as one:
            source = scrapes(*(f"{one.url}?{number}" for number in range(40)), max_concurrent=3)
            async with running(source):
                await until(lambda: len(source.states) == 40 and all(state.up for state in source.states.values()))

    asyncio.run(scenario())
    assert 1 <= max(most) <= 3


def test_scrapes_spread_targets_over_interval():
    requested = []

    async def scenario():
        async with exporter(lambda head: requested.append(time.monotonic()) or GOOD) as one:
            source = scrapes(*(f"{one.url}?{number}" for number in range(30)), interval_s=0.6)
            async with running(source):
                await until(lambda: len(requested) >= 30)

    asyncio.run(scenario())
    assert len({int((at - requested[0]) / 0.1) for at in requested[:30]}) >= 3  # not all in one moment


def test_scrape_reads_unrequested_gzip():
    async def scenario():
        packed = reply(gzip.compress(text_of([Gpu()])), Content_Encoding="gzip")
        async with exporter(packed) as one, running(scrapes(one.url)) as records:
            await until(lambda: records)
            assert "accept-encoding: identity" in one.heads[0].lower()

    asyncio.run(scenario())


def test_scrape_reads_chunked_response():
    """As Go's servers write what is longer than a few kB, dcgm-exporter's among them."""
    text = text_of([Gpu(0)])
    pieces = [text[begin : begin + 100] for begin in range(0, len(text), 100)]
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"

    async def scenario():
        async with exporter(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body) as one:
            async with running(scrapes(one.url)) as records:
                await until(lambda: records)
            return one.heads[0], records

    head, records = asyncio.run(scenario())
    assert "\r\nHost: 127.0.0.1:" in head
    assert sum(isinstance(record, GpuSample) for record in records) >= 1


def test_scrape_sends_credentials_of_url():
    async def scenario():
        async with exporter(GOOD) as one:
            async with running(scrapes(one.url.replace("//", f"//me:{SECRET}@"))) as records:
                await until(lambda: records)
            return one.heads[0]

    assert "\r\nAuthorization: Basic bWU6czNjcmV0\r\n" in asyncio.run(scenario())


def test_scrapes_lose_nothing_while_store_is_busy():
    """What was scraped meanwhile waits, in its order."""

    async def scenario():
        async with exporter(GOOD) as one:
            source = scrapes(one.url)
            async with aclosing(source.deliveries()) as deliveries:
                await anext(deliveries)
                requested = len(one.heads)
                await until(lambda: len(one.heads) >= requested + 20)  # while no delivery is taken
                held = await anext(deliveries)
                return sorted({record.time_ms for record in held.records if isinstance(record, GpuSample)}), held

    times, held = asyncio.run(scenario())
    assert len(times) >= 18
    assert [r.time_ms for r in held.records if isinstance(r, GpuSample)] == sorted(
        r.time_ms for r in held.records if isinstance(r, GpuSample)
    )


def test_scrape_keeps_complete_lines_of_truncated_response():
    text = text_of([Gpu()])
    cut = text[: text.index(b"DCGM_FI_DEV_XID") + 40]

    async def scenario():
        async with exporter(reply(cut, length=len(text))) as one:
            source = scrapes(one.url)
            async with running(source) as records:
                await until(lambda: records)
            (state,) = source.states.values()
            return records[0], state

    sample, state = asyncio.run(scenario())
    assert (sample.power_w, sample.gpu_util_permille, sample.xid) == (674, 930, None)
    assert state.up
    assert state.counts["answers cut short"] == state.counts["unfinished lines"] > 0


@pytest.mark.parametrize(("off_ms", "theirs"), [(3_600_000, False), (-3_600_000, False), (2_000, True)])
def test_scrape_uses_plausible_timestamps(off_ms, theirs):
    assert (abs(off_ms) < CLOCK_LIMIT_MS) == theirs
    now_ms = time.time_ns() // 1_000_000
    lines = text_of([Gpu()]).decode().splitlines()
    text = "".join(f"{line}\n" if line.startswith("#") else f"{line} {now_ms + off_ms}\n" for line in lines).encode()

    async def scenario():
        async with exporter(reply(text)) as one:
            source = scrapes(one.url)
            async with running(source) as records:
                await until(lambda: records)
            (state,) = source.states.values()
            return records[0].time_ms, state.counts["times far from ours"]

    time_ms, far = asyncio.run(scenario())
    assert (time_ms == now_ms + off_ms) == theirs
    assert bool(far) != theirs
    assert theirs or abs(time_ms - now_ms) < PATIENCE_S * 1000


# -- what does not ----------------------------------------------------------------------------------------------------

BOMB = gzip.compress(b"a" * 50_000_000)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (reply(b"<html>Sign in</html>\n", Content_Type="text/html"), "a web page, not metrics"),
        (reply(b""), "has no metrics"),
        (reply(b"\xff\xfe\x00\x01\n"), "binary, not metrics"),
        (reply(b"node_cpu_seconds_total 5\n"), "not of a GPU"),
        (reply(b"", "500 Internal Server Error"), "HTTP 500"),
        (reply(b"", "302 Found", Location="http://127.0.0.1:1/login"), "HTTP 302"),
        (reply(b"", "401 Unauthorized"), r"requires authentication \(HTTP 401\)\. Set a token file"),
        (reply(b"", "403 Forbidden"), r"requires authentication \(HTTP 403\)"),
        (reply(b"", length=200_000_000), "larger than 16777216 bytes"),
        (reply(BOMB, Content_Encoding="gzip"), "larger than 16777216 bytes"),
        (reply(b"not packed", Content_Encoding="gzip"), "is not gzip, although"),
        (reply(b"x", Content_Encoding="br"), "encoding 'br'"),
        (b"this is not HTTP\r\n\r\n", "does not answer"),
        (b"", "does not answer"),
    ],
)
def test_scrape_error_is_one_sentence(answer, message):
    async def scenario():
        async with exporter(answer) as one:
            return await trouble_with(one.url)

    error = asyncio.run(scenario())
    assert re.search(message, error)
    assert error[-1] in ".?"
    assert "\n" not in error


def test_scrape_aborts_oversized_response():
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"

    async def scenario():
        async with exporter(head + b"a" * 50_000_000) as one:
            error = await trouble_with(one.url, max_bytes=100_000)
            return error, one.sent

    error, sent = asyncio.run(scenario())
    assert "larger than 100000 bytes" in error
    assert sent < 40_000_000


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1/metrics", "does not answer"),
        ("http://no-such-host.invalid/metrics", "does not answer"),
        ("ftp://127.0.0.1/metrics", "not a URL"),
        ("nonsense", "not a URL"),
        ("http://[::1", "not a URL"),
    ],
)
def test_scrape_error_for_bad_url(url, message):
    assert message in asyncio.run(trouble_with(url))


def test_scrape_conversion_error_does_not_affect_other_targets():
    dcgm = Dcgm(lambda host: None, near_idle_power_w)

    def take(values):
        if any(place.hosts[0] == "broken" for _, place, _, _ in values):
            raise ZeroDivisionError
        return dcgm.take(values)

    async def scenario():
        async with exporter(GOOD) as good, exporter(reply(text_of([Gpu(host="broken")]))) as broken:
            listed = [ScrapeTarget(good.url), ScrapeTarget(broken.url)]
            source = Scrapes(lambda: listed, gpu_exporters(dcgm)._replace(take=take), interval_s=EVERY_S)
            async with running(source) as records:
                await until(lambda: source.states and source.states[listed[1]].error)
                seen = len(records)
                await until(lambda: len(records) > seen + 4)
            return records, [source.states[target].error for target in listed]

    records, errors = asyncio.run(scenario())
    assert {record.node_uid for record in records} == {"host/node-a"}
    assert errors == [None, "Its answer could not be used: ZeroDivisionError: ZeroDivisionError."]


def test_scrape_target_is_down_until_conversion_succeeds(caplog):
    """It is reported once, tried less and less often, and stays down between two attempts."""
    caplog.set_level(logging.INFO, "pyrometer")
    dcgm = Dcgm(lambda host: None, near_idle_power_w)
    works, seen = [], []

    def take(values):
        seen.append(source.states[target].up)
        if not works:
            raise ZeroDivisionError
        return dcgm.take(values)

    async def scenario():
        nonlocal source, target
        async with exporter(GOOD) as one:
            target = ScrapeTarget(one.url)
            source = Scrapes(lambda: [target], gpu_exporters(dcgm)._replace(take=take), interval_s=EVERY_S)
            async with running(source) as records:
                await until(lambda: len(seen) > 3)
                assert source.states[target].failures >= 3
                works.append(True)
                await until(lambda: records and source.states[target].up)

    source = target = None
    asyncio.run(scenario())
    assert not any(seen[1:4])
    lines = [record.message for record in caplog.records if record.name.startswith("pyrometer")]
    assert [line for line in lines if "could not be used" in line] == lines[:1]
    assert source.states[target].error is None


def test_hanging_scrape_does_not_delay_others():
    async def hang(head):
        await asyncio.Event().wait()

    async def scenario():
        async with exporter(hang) as hanging, exporter(GOOD) as good:
            source = scrapes(hanging.url, good.url, answer_s=0.2)
            prefix = f"{hanging.url}: It does not answer within 0.2 s"
            async with running(source) as records:
                await until(lambda: any(one.startswith(prefix) for one in source.shortcomings()))
                count = len(records)
                await until(lambda: len(records) > count)

    asyncio.run(scenario())


def test_scrape_error_and_recovery_are_logged_once(caplog):
    caplog.set_level(logging.INFO, "pyrometer")
    answers = [reply(b"", "503 Busy")] * 4 + [GOOD]

    async def scenario():
        async with exporter(lambda head: answers.pop(0) if len(answers) > 1 else answers[0]) as one:
            source = scrapes(one.url)
            async with running(source) as records:
                await until(lambda: records)
                (state,) = source.states.values()
                assert (state.up, state.error, state.failures) == (True, None, 0)

    asyncio.run(scenario())
    logged = [record.getMessage().partition(" ")[2] for record in caplog.records if record.name == "pyrometer"]
    assert logged == ["It answers with HTTP 503 instead of metrics. Check the path of the URL.", "answers again"]


def test_scrapes_raise_error_of_target_list():
    def broken():
        raise LookupError("no list")

    async def scenario():
        async for _ in Scrapes(broken, gpu_exporters(Dcgm(lambda host: None, near_idle_power_w))).deliveries():
            pass

    with pytest.raises(LookupError, match="no list"):
        asyncio.run(scenario())


# -- who may ask ------------------------------------------------------------------------------------------------------


def test_scrape_rereads_token_file(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    token = tmp_path / "token"
    token.write_text("expired\n")

    def guarded(head):
        return GOOD if f"Authorization: Bearer {SECRET}\r\n".lower() in head.lower() else reply(b"", "401 Unauthorized")

    async def scenario():
        async with exporter(guarded) as one:
            source = scrapes(ScrapeTarget(one.url, token_file=str(token)))
            async with running(source) as records:
                await until(lambda: source.shortcomings())
                (error,) = source.shortcomings()
                token.write_text(SECRET)
                await until(lambda: records)
                return error

    error = asyncio.run(scenario())
    assert error.endswith(f"It does not accept the token in {token} (HTTP 401). Check whether it has expired.")
    assert SECRET not in caplog.text


def test_scrape_error_for_token_without_permission(tmp_path):
    (tmp_path / "token").write_text(SECRET)

    async def scenario():
        async with exporter(reply(b"", "403 Forbidden")) as one:
            return await trouble_with(ScrapeTarget(one.url, token_file=str(tmp_path / "token")))

    assert "may not read metrics (HTTP 403)" in asyncio.run(scenario())


def test_scrape_refuses_unencrypted_or_missing_token(tmp_path):
    (tmp_path / "token").write_text(SECRET)
    plain = ScrapeTarget("http://node-a:9400/metrics", token_file=str(tmp_path / "token"))
    assert "sent unencrypted" in asyncio.run(trouble_with(plain))
    missing = ScrapeTarget("http://127.0.0.1:1/", token_file=str(tmp_path / "nothing"))
    assert asyncio.run(trouble_with(missing)).endswith("nothing cannot be read: No such file or directory.")


def test_scrape_errors_hide_secrets_of_url(caplog):
    caplog.set_level(logging.INFO, "pyrometer")
    target = f"http://user:{SECRET}@127.0.0.1:1/metrics?token={SECRET}"

    async def scenario():
        source = scrapes(target)
        async with running(source):
            await until(lambda: source.shortcomings())
            return source.shortcomings()

    (error,) = asyncio.run(scenario())
    assert error.startswith("http://127.0.0.1:1/metrics: ")
    assert SECRET not in error + caplog.text


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate that its own key has signed, for this machine."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl, to make a certificate: apt-get install openssl")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=exporter",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            folder / "key.pem",
            "-out",
            folder / "cert.pem",
        ],
        check=True,
        capture_output=True,
    )
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return str(folder / "cert.pem"), served


def test_scrape_error_for_untrusted_certificate(certificate):
    async def scenario():
        async with exporter(GOOD, certificate[1]) as one:
            return await trouble_with(one.url)

    assert asyncio.run(scenario()) == (
        "Its certificate is not trusted (self-signed certificate). Set a CA file that contains its authority."
    )


def test_scrape_error_for_hostname_mismatch(certificate):
    async def scenario():
        async with exporter(GOOD, certificate[1]) as one:
            return await trouble_with(ScrapeTarget(one.url.replace("127.0.0.1", "localhost"), ca_file=certificate[0]))

    assert "Hostname mismatch" in asyncio.run(scenario())


def test_scrape_accepts_certificate_of_ca_file(certificate, tmp_path):
    (tmp_path / "token").write_text(SECRET)

    async def scenario():
        async with exporter(GOOD, certificate[1]) as one:
            target = ScrapeTarget(one.url, ca_file=certificate[0], token_file=str(tmp_path / "token"))
            async with running(scrapes(target)) as records:
                await until(lambda: records)
            return one.heads[0]

    assert f"bearer {SECRET}" in asyncio.run(scenario()).lower()


def test_scrape_error_for_missing_ca_file(tmp_path):
    error = asyncio.run(trouble_with(ScrapeTarget("https://127.0.0.1:1/", ca_file=str(tmp_path / "nothing.pem"))))
    assert error.startswith(f"The CA file {tmp_path}/nothing.pem cannot be read")


# -- machines ---------------------------------------------------------------------------------------------------------


def test_scrapes_read_node_exporters():
    """The clock of the text is ahead of itself, a minute with every answer: rates come without waiting for one."""
    began_ms = time.time_ns() // 1_000_000 // 60_000 * 60_000 - 180_000

    def answer(head):
        answer.times += 1
        at_ms, worked_s = began_ms + 60_000 * answer.times, 60 * answer.times
        lines = [
            f'node_cpu_seconds_total{{cpu="0",mode="idle"}} {worked_s * 0.25} {at_ms}',
            f'node_disk_io_time_seconds_total{{device="sda"}} {worked_s} {at_ms}',
        ]
        return reply(("\n".join(lines) + "\n").encode())

    answer.times = 0

    async def scenario():
        async with exporter(answer) as one:
            target = ScrapeTarget(one.url, node="node-a")
            reading = node_exporters(NodeExporters({"node-a": "uid-a"}.get))
            async with running(Scrapes(lambda: [target], reading, interval_s=EVERY_S)) as records:
                await until(lambda: records)
            return records[0]

    row = asyncio.run(scenario())
    assert (row.node_uid, row.cpu_busy_permille, row.disk_busy_permille) == ("uid-a", 750, 1000)
