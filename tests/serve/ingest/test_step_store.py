"""The inbox of training processes: names of bodies, and storing them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrometer.collect.otlp.forms import OtlpError
from pyrometer.serve.ingest import step_store
from pyrometer.serve.ingest.step_store import StepStore, signal_of, store_inbox, suffix_of, was_sent
from pyrometer.store import Store
from pyrometer.store.inbox import of_training
from tests.support import cpu_run, otlp_json

T0 = 1_794_600_000_000


def body() -> bytes:
    identity = cpu_run.identity("l", 0, T0, run="run-1")
    who = {key: value for key, value in identity.items() if value is not None}
    (packed,) = otlp_json.bodies([(who, [otlp_json.window(T0, 0)])]).values()
    return packed


@pytest.mark.parametrize("is_json", [True, False])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("signal", ["logs", "traces", "metrics"])
def test_name_of_a_received_body_has_its_signal_and_origin(signal: str, *, is_json: bool, packed: bool) -> None:
    name = f"0001{suffix_of(signal, is_json=is_json, packed=packed)}"
    assert signal_of(name) == signal
    assert was_sent(Path(name))
    assert name.endswith(".gz") is packed


def test_body_of_a_local_process_was_not_sent() -> None:
    assert not was_sent(Path("0001.logs.json.gz"))


@pytest.mark.parametrize("name", ["0001", "0001.logs", "0001.other.json.gz", "0001.logs.http.xml"])
def test_read_rejects_names_that_are_not_bodies(name: str) -> None:
    with pytest.raises(OtlpError, match="is not the name of a body"):
        step_store.read(name, b"")


def test_inbox_is_stored_once_and_emptied(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        inbox = of_training(tmp_path)
        inbox.put(body(), suffix_of("logs", is_json=True, packed=False))
        assert not store_inbox(store)
        store.expose_all(["step_window"])
        assert len(store.connection.execute("FROM step_window").fetchall()) == 1
        assert list(inbox.paths()) == []


def test_unreadable_body_is_moved_aside_and_counted(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        inbox = of_training(tmp_path)
        inbox.put(b"not json", suffix_of("logs", is_json=True, packed=False))
        assert store_inbox(store).total() == 1
        assert list(inbox.paths()) == []
        assert len(list(inbox.folder.iterdir())) == 1


def test_waiting_counts_messages_until_they_are_stored(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        inbox = of_training(tmp_path)
        path = inbox.put(body(), suffix_of("logs", is_json=True, packed=False))
        steps = StepStore(store, inbox)
        steps.read(path)
        assert (steps.waiting, steps.paths) == (1, {path})
        assert steps.waiting_bytes > 0
        steps.store(everything=True)
        assert (steps.waiting, steps.waiting_bytes, steps.paths) == (0, 0, set())
        assert steps.stored > 0
