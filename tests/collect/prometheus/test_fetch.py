"""One HTTP response in any packets, and invalid responses."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyrometer.collect.prometheus.fetch import (
    MAX_HEAD_BYTES,
    AnswerTooLargeError,
    FetchedAnswer,
    ProtocolError,
    _Exchange,
)

MAX_BYTES = 1_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
ANSWERS = {
    b"with a length": HEAD + b"Content-Length: 11\r\n\r\nup 1\nup 2\n\n",
    b"in chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nup 1\n\r\n6;a=b\r\nup 2\n\n\r\n0\r\nLate: 1\r\n\r\n",
    b"until it hangs up": HEAD + b"\r\nup 1\nup 2\n\n",
    b"after another head": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    + HEAD
    + b"Content-Length: 11\r\n\r\nup 1\nup 2\n\n",
}


def received(pieces: list[bytes], error: Exception | None = None) -> FetchedAnswer:
    """What is made of an answer that comes in pieces, and then ends."""

    async def exchange() -> FetchedAnswer:
        one = _Exchange(asyncio.get_running_loop(), MAX_BYTES)
        for piece in pieces:
            one.data_received(piece)
        one.connection_lost(error)
        assert one.answer.done()
        return await one.answer

    return asyncio.run(exchange())


def cut(whole: bytes, places: list[int]) -> list[bytes]:
    """Bytes in pieces, none of them empty."""
    ends = sorted({0, len(whole), *(place % len(whole) for place in places)})
    return [whole[begin:end] for begin, end in pairwise(ends)]


@given(st.sampled_from(sorted(ANSWERS)), st.lists(st.integers(0, 400), max_size=20))
@settings(max_examples=100, deadline=None)
def test_response_is_independent_of_packet_boundaries(form: bytes, places: list[int]) -> None:
    answer = received(cut(ANSWERS[form], places))
    assert (answer.status, answer.body, answer.whole) == (200, b"up 1\nup 2\n\n", True)
    assert answer.headers["content-type"] == "text/plain"
    assert not {"late", "link"} & set(answer.headers)


@given(st.binary(max_size=300), st.lists(st.integers(0, 400), max_size=5), st.sampled_from([b"", HEAD, HEAD + b"\r\n"]))
@example(b"garbage", [], b"")
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_response_or_an_error(rest: bytes, places: list[int], begin: bytes) -> None:
    whole = begin + rest
    try:
        answer = received(cut(whole, places) if whole else [])
    except (ProtocolError, AnswerTooLargeError):
        return
    assert len(answer.body) <= len(whole)


@pytest.mark.parametrize("form", [form for form in ANSWERS if form != b"until it hangs up"])
def test_truncated_response_is_not_whole(form: bytes) -> None:
    answer = received([ANSWERS[form][: ANSWERS[form].index(b"up 2") + 2]])
    assert answer.body.startswith(b"up 1\n")
    assert not answer.whole


def test_reset_connection_does_not_complete_response() -> None:
    assert not received([ANSWERS[b"until it hangs up"]], ConnectionResetError()).whole
    with pytest.raises(ConnectionResetError):
        received([HEAD], ConnectionResetError())


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([], ProtocolError),
        ([HEAD], ProtocolError),
        ([b"HTTP/1.1 200 OK\r\n"] + [b"X: y\r\n"] * MAX_HEAD_BYTES, ProtocolError),
        ([b"HTTP/1.1 103 Early Hints\r\n\r\n"] * MAX_HEAD_BYTES, ProtocolError),
        ([HEAD + b"Content-Length: 1001\r\n\r\n"], AnswerTooLargeError),
        ([HEAD + b"\r\n", *([b"x" * 100] * 11)], AnswerTooLargeError),
    ],
)
def test_endless_response_is_aborted(pieces: list[bytes], error: type[Exception]) -> None:
    with pytest.raises(error):
        received(pieces)


def test_error_response_is_read_without_body() -> None:
    answer = received([b"HTTP/1.1 302 Found\r\nContent-Length: 99999999\r\n\r\n"])
    assert (answer.status, answer.body) == (302, b"")
