"""Backups as tar streams."""

from __future__ import annotations

import io
import tarfile

import pytest

from pyrometer.store.backups.backup_members import BackupError, BackupMember
from pyrometer.store.backups.backup_tar import HEADERS, packed, unpacked

MEMBERS = [("a/b.txt", b"hello"), ("empty", b""), ("x" * 300, b"\0" * 100_000)]


def stream() -> bytes:
    return b"".join(packed(BackupMember(path, len(body), [body]) for path, body in MEMBERS))


def test_packed_members_are_unpacked_the_same():
    assert [(one.path, b"".join(one.chunks)) for one in unpacked([stream()])] == MEMBERS


def test_streams_may_come_in_any_pieces():
    pieces = [stream()[at : at + 777] for at in range(0, len(stream()), 777)]
    assert [(one.path, b"".join(one.chunks)) for one in unpacked(pieces)] == MEMBERS


def test_streams_of_several_calls_are_one_archive():
    first, second = ([BackupMember(path, len(body), [body])] for path, body in MEMBERS[:2])
    whole = b"".join([*packed(first, last=False), *packed(second)])
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        assert tar.getnames() == ["a/b.txt", "empty"]


def test_a_truncated_stream_is_an_error():
    members = unpacked([stream()[:50_000]])
    with pytest.raises(BackupError, match="broke off"):
        [b"".join(member.chunks) for member in members]


def test_a_link_is_an_error():
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(BackupError, match=r"'link' .* is not an ordinary file"):
        list(unpacked([content.getvalue()]))


def test_headers_of_any_length_are_not_read():
    header = tarfile.TarInfo("x" * (2 * HEADERS))
    with pytest.raises(BackupError, match="broke off"):
        list(unpacked([header.tobuf(tarfile.GNU_FORMAT)]))
