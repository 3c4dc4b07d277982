"""Scraping real servers on this machine: what goes well, and everything that does not, in one sentence each."""

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
from pyrometer.collect.gpu.scrape import CLOCK_LIMIT_MS, Scrapes, ScrapeTarget, of_gpus, of_machines
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

    async def handle(self, reader, writer):
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
            pass  # whoever asked had enough
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
    return Scrapes(lambda: listed, of_gpus(dcgm), **{"interval_s": EVERY_S, "answer_s": 5.0, **options})


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
    """What is said of a target that does not work."""
    source = scrapes(target, **options)
    async with running(source) as records:
        await until(lambda: any(state.error for state in source.states.values()))
    (state,) = source.states.values()
    assert state.up is False
    assert records == []
    return state.error


GOOD = reply(text_of([Gpu(0, pod="train-0"), Gpu(1)]))


# -- what goes well ---------------------------------------------------------------------------------------------------


def test_samples_come_with_our_time_and_node(tmp_path):
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
    assert sum(isinstance(record, Slot) for record in records) == 2  # told once
    with closing(Store(tmp_path / "data", create=True)) as store:
        store.append(records)
        store.expose_all(["gpu_sample"])
        assert store.connection.execute("SELECT count(*) FROM gpu_sample").fetchone() == (len(samples),)


def test_the_node_of_a_target_goes_before_its_labels():
    async def scenario():
        async with (
            exporter(reply(text_of([Gpu(host="container-4711")]))) as one,
            running(scrapes(ScrapeTarget(one.url, node="node-a"))) as records,
        ):
            await until(lambda: records)
            return records[0].node_uid

    assert asyncio.run(scenario()) == "uid-a"


def test_targets_come_and_go():
    async def scenario():
        async with exporter(GOOD) as first, exporter(GOOD) as second:
            listed = [ScrapeTarget(first.url)]
            source = Scrapes(lambda: listed, of_gpus(Dcgm(lambda host: None, near_idle_power_w)), interval_s=EVERY_S)
            async with running(source):
                await until(lambda: first.heads)
                listed[:] = [ScrapeTarget(second.url)]
                await until(lambda: second.heads and list(source.states) == listed)
                asked = len(first.heads)
                await until(lambda: len(second.heads) > 3)
                assert len(first.heads) <= asked + 1

    asyncio.run(scenario())


def test_no_more_than_so_many_at_once():
    waiting, most = set(), []

    async def slow(head):
        waiting.add(head)
        most.append(len(waiting))
        await asyncio.sleep(0.002)
        waiting.remove(head)  # before it is answered
        return GOOD

    async def scenario():
        async with exporter(slow) as one:
            source = scrapes(*(f"{one.url}?{number}" for number in range(40)), most_at_once=3)
            async with running(source):
                await until(lambda: len(source.states) == 40 and all(state.up for state in source.states.values()))

    asyncio.run(scenario())
    assert 1 <= max(most) <= 3


def test_targets_are_spread_over_the_interval():
    asked = []

    async def scenario():
        async with exporter(lambda head: asked.append(time.monotonic()) or GOOD) as one:
            source = scrapes(*(f"{one.url}?{number}" for number in range(30)), interval_s=0.6)
            async with running(source):
                await until(lambda: len(asked) >= 30)

    asyncio.run(scenario())
    assert len({int((at - asked[0]) / 0.1) for at in asked[:30]}) >= 3  # not all in one moment


def test_a_packed_answer_is_read_though_none_is_asked_for():
    async def scenario():
        packed = reply(gzip.compress(text_of([Gpu()])), Content_Encoding="gzip")
        async with exporter(packed) as one, running(scrapes(one.url)) as records:
            await until(lambda: records)
            assert "accept-encoding: identity" in one.heads[0].lower()

    asyncio.run(scenario())


def test_an_answer_in_chunks_is_read():
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


def test_who_asks_may_stand_in_the_address():
    async def scenario():
        async with exporter(GOOD) as one:
            async with running(scrapes(one.url.replace("//", f"//me:{SECRET}@"))) as records:
                await until(lambda: records)
            return one.heads[0]

    assert "\r\nAuthorization: Basic bWU6czNjcmV0\r\n" in asyncio.run(scenario())


def test_a_store_that_is_busy_costs_no_answer():
    """What was scraped meanwhile waits, in its order."""

    async def scenario():
        async with exporter(GOOD) as one:
            source = scrapes(one.url)
            async with aclosing(source.deliveries()) as deliveries:
                await anext(deliveries)
                asked = len(one.heads)
                await until(lambda: len(one.heads) >= asked + 20)  # nobody takes a delivery
                held = await anext(deliveries)
                return sorted({record.time_ms for record in held.records if isinstance(record, GpuSample)}), held

    times, held = asyncio.run(scenario())
    assert len(times) >= 18
    assert [r.time_ms for r in held.records if isinstance(r, GpuSample)] == sorted(
        r.time_ms for r in held.records if isinstance(r, GpuSample)
    )


def test_an_answer_that_is_cut_short_keeps_its_whole_lines():
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
def test_times_in_the_text_count_when_they_may_be_true(off_ms, theirs):
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
    ("answer", "said"),
    [
        (reply(b"<html>Sign in</html>\n", Content_Type="text/html"), "a web page, not metrics"),
        (reply(b""), "holds no metrics"),
        (reply(b"\xff\xfe\x00\x01\n"), "binary, not metrics"),
        (reply(b"node_cpu_seconds_total 5\n"), "none of a GPU"),
        (reply(b"", "500 Internal Server Error"), "HTTP 500"),
        (reply(b"", "302 Found", Location="http://127.0.0.1:1/login"), "HTTP 302"),
        (reply(b"", "401 Unauthorized"), r"who asks \(HTTP 401\): name a token file"),
        (reply(b"", "403 Forbidden"), r"who asks \(HTTP 403\)"),
        (reply(b"", length=200_000_000), "larger than 16777216 bytes"),
        (reply(BOMB, Content_Encoding="gzip"), "larger than 16777216 bytes"),
        (reply(b"not packed", Content_Encoding="gzip"), "packed with gzip, and is not"),
        (reply(b"x", Content_Encoding="br"), "packed with 'br'"),
        (b"this is no HTTP\r\n\r\n", "does not answer"),
        (b"", "does not answer"),
    ],
)
def test_every_trouble_is_one_sentence(answer, said):
    async def scenario():
        async with exporter(answer) as one:
            return await trouble_with(one.url)

    error = asyncio.run(scenario())
    assert re.search(said, error)
    assert error[-1] in ".?"
    assert "\n" not in error


def test_an_answer_without_end_is_not_read_to_its_end():
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"

    async def scenario():
        async with exporter(head + b"a" * 50_000_000) as one:
            said = await trouble_with(one.url, most_bytes=100_000)
            return said, one.sent

    said, sent = asyncio.run(scenario())
    assert "larger than 100000 bytes" in said
    assert sent < 40_000_000


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1/metrics", "does not answer"),
        ("http://no-such-host.invalid/metrics", "does not answer"),
        ("ftp://127.0.0.1/metrics", "no URL"),
        ("nonsense", "no URL"),
        ("http://[::1", "no URL"),
    ],
)
def test_addresses_that_lead_nowhere(url, said):
    assert said in asyncio.run(trouble_with(url))


def test_an_answer_that_nothing_can_be_made_of_costs_none_of_the_others():
    dcgm = Dcgm(lambda host: None, near_idle_power_w)

    def take(values):
        if any(place.hosts[0] == "broken" for _, place, _, _ in values):
            raise ZeroDivisionError
        return dcgm.take(values)

    async def scenario():
        async with exporter(GOOD) as good, exporter(reply(text_of([Gpu(host="broken")]))) as broken:
            listed = [ScrapeTarget(good.url), ScrapeTarget(broken.url)]
            source = Scrapes(lambda: listed, of_gpus(dcgm)._replace(take=take), interval_s=EVERY_S)
            async with running(source) as records:
                await until(lambda: source.states and source.states[listed[1]].error)
                seen = len(records)
                await until(lambda: len(records) > seen + 4)
            return records, [source.states[target].error for target in listed]

    records, errors = asyncio.run(scenario())
    assert {record.node_uid for record in records} == {"host/node-a"}
    assert errors == [None, "Its answer could not be used: ZeroDivisionError: ZeroDivisionError."]


def test_an_answer_that_nothing_can_be_made_of_stays_in_trouble_until_one_can(caplog):
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
            source = Scrapes(lambda: [target], of_gpus(dcgm)._replace(take=take), interval_s=EVERY_S)
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


def test_one_that_hangs_does_not_hold_up_the_others():
    async def hang(head):
        await asyncio.Event().wait()

    async def scenario():
        async with exporter(hang) as hanging, exporter(GOOD) as good:
            source = scrapes(hanging.url, good.url, answer_s=0.2)
            said = f"{hanging.url}: It does not answer within 0.2 s"
            async with running(source) as records:
                await until(lambda: any(one.startswith(said) for one in source.shortcomings()))
                count = len(records)
                await until(lambda: len(records) > count)

    asyncio.run(scenario())


def test_trouble_is_said_once_and_its_end_too(caplog):
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
    said = [record.getMessage().partition(" ")[2] for record in caplog.records if record.name == "pyrometer"]
    assert said == ["It answers with HTTP 503 instead of metrics: is the path right?", "answers again"]


def test_a_list_of_targets_that_cannot_be_made_is_no_silence():
    def broken():
        raise LookupError("no list")

    async def scenario():
        async for _ in Scrapes(broken, of_gpus(Dcgm(lambda host: None, near_idle_power_w))).deliveries():
            pass

    with pytest.raises(LookupError, match="no list"):
        asyncio.run(scenario())


# -- who may ask ------------------------------------------------------------------------------------------------------


def test_a_token_is_read_anew_every_time(tmp_path, caplog):
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
                (said,) = source.shortcomings()
                token.write_text(SECRET)
                await until(lambda: records)
                return said

    said = asyncio.run(scenario())
    assert said.endswith(f"It does not accept the token in {token} (HTTP 401): has it expired?")
    assert SECRET not in caplog.text


def test_a_token_that_may_not_read_metrics(tmp_path):
    (tmp_path / "token").write_text(SECRET)

    async def scenario():
        async with exporter(reply(b"", "403 Forbidden")) as one:
            return await trouble_with(ScrapeTarget(one.url, token_file=str(tmp_path / "token")))

    assert "may not read metrics (HTTP 403)" in asyncio.run(scenario())


def test_a_token_is_not_sent_unencrypted_nor_without_a_file(tmp_path):
    (tmp_path / "token").write_text(SECRET)
    plain = ScrapeTarget("http://node-a:9400/metrics", token_file=str(tmp_path / "token"))
    assert "for all to read" in asyncio.run(trouble_with(plain))
    missing = ScrapeTarget("http://127.0.0.1:1/", token_file=str(tmp_path / "nothing"))
    assert asyncio.run(trouble_with(missing)).endswith("nothing cannot be read: No such file or directory.")


def test_what_is_secret_in_an_address_is_not_said(caplog):
    caplog.set_level(logging.INFO, "pyrometer")
    target = f"http://user:{SECRET}@127.0.0.1:1/metrics?token={SECRET}"

    async def scenario():
        source = scrapes(target)
        async with running(source):
            await until(lambda: source.shortcomings())
            return source.shortcomings()

    (said,) = asyncio.run(scenario())
    assert said.startswith("http://127.0.0.1:1/metrics: ")
    assert SECRET not in said + caplog.text


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


def test_a_certificate_that_nobody_vouches_for(certificate):
    async def scenario():
        async with exporter(GOOD, certificate[1]) as one:
            return await trouble_with(one.url)

    assert asyncio.run(scenario()) == (
        "Its certificate is not trusted (self-signed certificate): name its authority in a CA file."
    )


def test_a_certificate_for_another_name(certificate):
    async def scenario():
        async with exporter(GOOD, certificate[1]) as one:
            return await trouble_with(ScrapeTarget(one.url.replace("127.0.0.1", "localhost"), ca_file=certificate[0]))

    assert "Hostname mismatch" in asyncio.run(scenario())


def test_a_certificate_whose_authority_is_named(certificate, tmp_path):
    (tmp_path / "token").write_text(SECRET)

    async def scenario():
        async with exporter(GOOD, certificate[1]) as one:
            target = ScrapeTarget(one.url, ca_file=certificate[0], token_file=str(tmp_path / "token"))
            async with running(scrapes(target)) as records:
                await until(lambda: records)
            return one.heads[0]

    assert f"bearer {SECRET}" in asyncio.run(scenario()).lower()


def test_a_file_of_authorities_that_is_not_there(tmp_path):
    said = asyncio.run(trouble_with(ScrapeTarget("https://127.0.0.1:1/", ca_file=str(tmp_path / "nothing.pem"))))
    assert said.startswith(f"The file of authorities {tmp_path}/nothing.pem cannot be read")


# -- machines ---------------------------------------------------------------------------------------------------------


def test_node_exporters_are_scraped_in_the_same_way():
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
            reading = of_machines(NodeExporters({"node-a": "uid-a"}.get))
            async with running(Scrapes(lambda: [target], reading, interval_s=EVERY_S)) as records:
                await until(lambda: records)
            return records[0]

    row = asyncio.run(scenario())
    assert (row.node_uid, row.cpu_busy_permille, row.disk_busy_permille) == ("uid-a", 750, 1000)
