"""Bodies in the inbox of a data folder that nobody can read: what was acknowledged, and cannot be stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyrometer.account.check_parts import Problem
from pyrometer.collect.remote_write import Reader, RemoteWriteError
from pyrometer.store import Store
from pyrometer.store.inbox import REFUSED, Inbox, of_training
from pyrometer.store.rebuild import LOST, put_aside


def unread_bodies(folder: Path) -> Iterator[Problem]:
    """What a Prometheus or a training process sent and that cannot be read; to mend is to put it aside."""
    for path in sorted(of_training(folder).folder.glob(f"*{REFUSED}")):
        shown = path.relative_to(folder)
        yield Problem(f"{shown} could not be read when it was to be stored.", mend=_putting_aside(path))
    reader = Reader()
    for path, body in Inbox(folder / "inbox").left():
        try:
            reader.read(body, time.time_ns() // 1_000_000)
        except RemoteWriteError as error:
            text = f"{path.relative_to(folder)} cannot be read: {error}"
            yield Problem(text, mend=_putting_aside(path))


def _putting_aside(path: Path) -> Callable[[Store], str]:
    def mend(store: Store) -> str:
        put_aside(store.folder, path)
        return f"{path.relative_to(store.folder)} lies in {LOST}/."

    return mend
