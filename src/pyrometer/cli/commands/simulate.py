"""`pyrometer simulate`: a simulated cluster as a data folder, with its truth in truth.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pyrometer.cli.command_support import WAIT_FOR_FOLDER_S
from pyrometer.cli.progress_bar import progress_bar
from pyrometer.model.human import counted, dollars, hours
from pyrometer.render.tables import print_table
from pyrometer.simulate.draft import NoRoomError
from pyrometer.simulate.night import TRUTH, simulate
from pyrometer.simulate.scenarios import MIN_GPUS, SCENARIOS
from pyrometer.store import Store
from pyrometer.store.data_folder import DATABASE


@click.command(epilog="`pyrometer simulate list` describes each scenario.")
@click.argument("scenario", metavar="SCENARIO", type=click.Choice([*SCENARIOS, "list"]))
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Each seed makes a different night.")
@click.option(
    "--gpus", type=click.IntRange(MIN_GPUS, 1_000_000), help="About how many GPUs. Default: depends on the scenario."
)
@click.option(
    "--hours",
    "length",
    type=click.IntRange(4, 24 * 31),
    help="Length of the simulated time. Default: depends on the scenario.",
)
@click.option("--out", "folder", metavar="DIR", type=click.Path(path_type=Path), help="The data folder to create.")
def command(scenario: str, seed: int, gpus: int | None, length: int | None, folder: Path | None) -> None:
    """Simulates a night of a GPU cluster into a new data folder: everything that its sources would have sent, and
    truth.json with what really happened."""
    if scenario == "list":
        print_table(["scenario", "description"], [[name, each.summary] for name, each in SCENARIOS.items()], figures=0)
        return
    if folder is None:
        raise click.UsageError("No folder: pass --out DIR.")
    truth = make_night(folder, scenario, seed, gpus, length)
    planted = counted(len(truth["findings"]), "planted fault")
    click.echo(
        f"Simulated {hours(truth['total']['gpu_ms'])}, {dollars(truth['total']['usd_micro'])} and {planted} "
        f"({scenario}, seed {seed})."
    )
    click.echo(f"Next: pyrometer why --data {folder} --all, or pyrometer score {folder}")


def make_night(folder: Path, scenario: str, seed: int, gpus: int | None, length: int | None) -> dict[str, Any]:
    """Simulates into a folder. The folder of an earlier simulation is replaced; any other folder is an error."""
    if folder.exists() and any(folder.iterdir()):
        _clear(folder)
    try:
        with Store(folder, create=True, wait_s=WAIT_FOR_FOLDER_S) as store, progress_bar("Simulating") as progress:
            return simulate(store, scenario, seed=seed, gpus=gpus, hours=length, progress=progress)
    except NoRoomError as error:
        raise click.ClickException(str(error)) from None


def _clear(folder: Path) -> None:
    """Removes an earlier simulation from a folder, and nothing else."""
    foreign = f"{folder} exists and was not made by a simulation. Choose another folder."
    if not (folder / DATABASE).exists():
        raise click.ClickException(foreign)
    with Store(folder, wait_s=WAIT_FOR_FOLDER_S) as store:
        if store.meta("origin") != "simulated":
            raise click.ClickException(foreign)
        for part in store.parts():
            (folder / part.path).unlink(missing_ok=True)
    for name in (DATABASE, f"{DATABASE}.wal", "manifest.json", TRUTH, "why.html"):
        (folder / name).unlink(missing_ok=True)
