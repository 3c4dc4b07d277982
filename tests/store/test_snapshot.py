"""Reading while writing: a snapshot is the store at its moment, whatever happens to the store later."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.model.records import Event
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import Store, StoreReader
from pyrometer.store.store import NewPart

DAY = 1_760_054_400_000  # 2025-10-10T00:00Z


def event(number: int) -> Event:
    return Event(DAY + number * MS_PER_HOUR // 4, f"seen-{number}")


def read(store: StoreReader) -> list[str]:
    store.expose_all(["event"])
    return [kind for (kind,) in store.connection.execute("SELECT kind FROM event ORDER BY kind").fetchall()]


# What may happen to a store: an event is added, hours are sealed, the first hours are dropped, a snapshot is taken or
# given back.
DOINGS = st.lists(st.sampled_from(["append", "seal", "drop", "take", "close"]), max_size=25)


@given(DOINGS)
@settings(max_examples=20, deadline=None)
@pytest.mark.heavy
def test_every_snapshot_is_the_store_at_its_moment(tmp_path_factory: pytest.TempPathFactory, doings: list[str]) -> None:
    folder = tmp_path_factory.mktemp("store")
    with Store(folder, create=True) as store:
        taken: list[tuple[StoreReader, list[str]]] = []
        for number, what in enumerate(doings):
            if what == "append":
                store.append([event(number)])
            elif what == "seal":
                store.seal()
            elif what == "drop":
                store.drop_before(DAY + number * MS_PER_HOUR // 8)
            elif what == "take":
                taken.append((store.snapshot(), read(store)))
            elif taken:
                taken.pop(0)[0].close()  # type: ignore[attr-defined]
            for snapshot, as_it_was in taken:
                assert read(snapshot) == as_it_was
        for snapshot, as_it_was in taken:
            assert read(snapshot) == as_it_was
            snapshot.close()  # type: ignore[attr-defined]
        listed = {folder / part.path for part in store.parts()}
        assert set(folder.glob("parts/**/*.parquet")) == listed


def test_a_replaced_file_is_removed_after_its_last_reader(tmp_path) -> None:
    with Store(tmp_path, create=True) as store:
        store.append([event(0)])
        store.seal()
        (old,) = store.parts("event")
        first, second = store.snapshot(), store.snapshot()
        query = "SELECT * REPLACE ('changed' AS kind) FROM event"
        store.expose_all(["event"])
        store.replace([NewPart("event", old.from_ms, old.to_ms, query, "")])
        assert read(store) == ["changed"]
        assert (tmp_path / old.path).exists()
        assert (read(first), read(second)) == (["seen-0"], ["seen-0"])
        first.close()
        assert (tmp_path / old.path).exists()
        second.close()
        assert not (tmp_path / old.path).exists()


def test_the_next_process_removes_leftover_files(tmp_path) -> None:
    with Store(tmp_path, create=True) as store:
        store.append([event(0)])
        store.seal()
        (old,) = store.parts("event")
        snapshot = store.snapshot()
        store.drop_before(old.to_ms)
        assert (tmp_path / old.path).exists()
        snapshot.connection.close()  # as if the process had been killed
    with Store(tmp_path) as store:
        assert not (tmp_path / old.path).exists()
        assert read(store) == []


def test_a_snapshot_is_read_in_another_thread_while_rows_come_in(tmp_path) -> None:
    with Store(tmp_path, create=True) as store:
        store.append([event(number) for number in range(8)])
        snapshot = store.snapshot()
        seen: list[int] = []
        done = threading.Event()

        def look() -> None:
            while True:
                seen.append(len(read(snapshot)))
                if done.is_set():
                    return

        reader = threading.Thread(target=look)
        reader.start()
        for number in range(8, 40):
            store.append([event(number)])
            if number % 8 == 0:
                store.seal()
        done.set()
        reader.join()
        snapshot.close()
        assert set(seen) == {8}
        assert len(read(store)) == 40


def test_readers_are_interrupted_while_others_end(tmp_path) -> None:
    with Store(tmp_path, create=True) as store, ThreadPoolExecutor(1) as thread:
        done = threading.Event()

        def interrupt() -> int:
            times = 0
            while not done.is_set():
                store.interrupt_readers()
                times += 1
            return times

        interrupting = thread.submit(interrupt)
        for _ in range(1_000):
            store.snapshot().close()
        done.set()
        assert interrupting.result() > 0
