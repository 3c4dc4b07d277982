"""SIGKILL anywhere: what was acknowledged is there once, the folder is well, its ledger that of an undisturbed twin.

A server and the commands that change a folder are killed before steps of theirs: every change to a file, every
statement of a transaction (`child.py`). Here some of them; `benchmarks/faults.py` takes every one, and random moments.
"""

from __future__ import annotations

import json
import random
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pyrometer.account.build.ledger import take_down
from pyrometer.model.units import MS_PER_DAY
from pyrometer.store import Store
from pyrometer.store.data_folder import DATABASE
from tests.support.crashing_process import Faults
from tests.support.effort import THOROUGH
from tests.support.fault_harness import (
    START_MS,
    Counts,
    FolderContents,
    compare,
    deliveries,
    prepare_folder,
    read_folder,
    run_command,
    run_without_faults,
)
from tests.support.kills import KillScenario, kill_at_every_step

SOME = 16 if THOROUGH else 30  # every so manyth step


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("killed")
    load = deliveries(30, 10)
    twin = run_without_faults(scratch / "twin", load)
    return KillScenario(scratch, prepare_folder(scratch / "before"), load, twin)


@pytest.mark.parametrize("step", [20, 110])
def test_a_killed_server_loses_nothing(scene, step):
    killed = scene.kill_server_at(step)
    assert killed is not None
    assert killed.counts.acknowledged == 112
    assert killed.counts.is_clean, killed


@pytest.mark.heavy
@pytest.mark.parametrize("steps", [(150, 10), (40, 60, 30)])
def test_consecutively_killed_servers_lose_nothing(scene, steps):
    killed = scene.kill_server_at(*steps)
    assert killed is None or killed.counts.is_clean, killed


@pytest.mark.heavy
def test_a_server_killed_at_any_moment_loses_nothing(scene):
    killed = scene.kill_server_at_random(random.Random(1), times=4)
    assert killed.counts.is_clean, killed


def folders_to_harm(scene: KillScenario, harm):
    """Copies of the sealed folder, each harmed in the same way."""

    def make() -> Path:
        scene.before, before = scene.scratch / "twin", scene.before
        folder = scene.folder()
        scene.before = before
        harm(folder)
        return folder

    return make


def without_ledger(folder: Path) -> None:
    with Store(folder) as store:
        take_down(store, [part for part in store.parts() if part.kind in ("ledger_row", "carry", "energy")])


def without_catalog(folder: Path) -> None:
    (folder / DATABASE).unlink()


def with_a_broken_part(folder: Path) -> None:
    path = next((folder / "parts" / "ledger_row").rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:100])


COMMANDS = {
    "build": (without_ledger, lambda folder: ["cost", "--data", str(folder), "--all"]),
    "new catalog": (without_catalog, lambda folder: ["check", str(folder), "--repair"]),
    "repair": (with_a_broken_part, lambda folder: ["check", str(folder), "--repair"]),
}


@pytest.mark.heavy
@pytest.mark.parametrize("what", COMMANDS)
def test_a_killed_command_can_be_repeated(scene, what):
    harm, arguments = COMMANDS[what]
    killed, steps = kill_at_every_step(
        folders_to_harm(scene, harm),
        arguments,
        lambda folder: compare(read_folder(folder), scene.twin, set()),
        every=SOME,
    )
    assert steps > 10
    assert killed.counts.is_clean, killed


def test_a_killed_repair_is_completed_by_the_next_build(scene):
    harm, arguments = COMMANDS["repair"]
    taken_down, once = 10, 1_000
    killed, _ = kill_at_every_step(
        folders_to_harm(scene, harm),
        arguments,
        lambda folder: compare(read_folder(folder), scene.twin, set()),
        step=taken_down,
        every=once,
    )
    assert killed.counts.faults == 1
    assert killed.counts.is_clean, killed


@pytest.mark.heavy
def test_a_killed_retention_drops_exactly_old_data(scene):
    kept = Faults(variables={"PYROMETER_RETENTION_DAYS": "1"})
    make = folders_to_harm(scene, lambda folder: None)
    arguments = COMMANDS["build"][1]
    twin_folder = make()
    assert "nothing to account for" in run_command(*arguments(twin_folder), faults=kept).log  # all data is older
    twin: FolderContents = read_folder(twin_folder)
    assert len(twin.ledger) < len(scene.twin.ledger)
    killed, steps = kill_at_every_step(
        make, arguments, lambda folder: compare(read_folder(folder), twin, set()), every=SOME, faults=kept, ends=(1,)
    )
    assert steps > 10
    assert killed.counts.is_clean, killed


@pytest.mark.heavy
def test_a_killed_closing_leaves_the_month_closed_or_open(scene, tmp_path):
    month = datetime.fromtimestamp(START_MS / 1000, UTC).strftime("%Y-%m")
    (tmp_path / "clock").write_text(str(45 * MS_PER_DAY))
    later = Faults(clock=str(tmp_path / "clock"))
    make = folders_to_harm(scene, lambda folder: None)

    def closed(folder: Path) -> dict:
        fields = json.loads((folder / "closed" / f"{month}.json").read_text())
        return {name: fields[name] for name in ("total", "ledger", "row_count", "sha256")}

    twin_folder = make()
    done = run_command("close", month, "--data", twin_folder, faults=later)
    assert done.process.exitcode == 0, done.log
    twin = closed(twin_folder)

    def check(folder: Path) -> Counts:
        return Counts(faults=1, unlike=int(closed(folder) != twin), wrong=len(read_folder(folder).wrong))

    killed, steps = kill_at_every_step(
        make, lambda folder: ["close", month, "--data", str(folder)], check, every=SOME, faults=later, ends=(0, 1)
    )
    shutil.rmtree(twin_folder)
    assert steps > 10
    assert killed.counts.is_clean, killed
