"""The questions of the commands, asked from Python: answers as Arrow tables, pandas frames, and what a notebook shows.

    pyrometer.connect("pyrometer-demo").cost(by="team,state").pandas()

Whom to ask, the words of the questions and the answers are the commands' own: `pyrometer cost --by team,state -o json`.
Nothing is worked out here.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from pyrometer.cli.command_support import ReadRequest
from pyrometer.export.csv import WORKLOAD
from pyrometer.model.units import USD_MICRO_PER_USD

Row = dict[str, Any]
About = str | int | float | bool | datetime | Iterable[str] | None  # how Python says what options say in text

SHOWN_ROWS = 20  # in a notebook
TIMES = ("from", "to", "at", "started", "ended", "seen", "detected", "since")  # names of columns end like this
PARTS = {"pipeline": "steps", "sweep": "trials"}  # of `show`: which table is inside of what
CURVE = ("step", "time", "value", "gpu_ms", "usd_micro")  # a point, as `show` and `worth` have it
# The table that is meant where none is named; else `rows`, else the first.
MEANT = {
    "why": "findings",
    "burn": "states",
    "show": "metrics",
    "worth": "runs",
    "trace": "spans",
    "lineage": "updates",
}


class AskedWronglyError(ValueError):
    """A question that makes no sense; the text names the parameter, the value and the way out."""


def connect(where: str | Path | None = None, *, token: str | None = None) -> Client:
    """Asks a data folder, or a server by its address. Without either, PYROMETER_DATA says which folder.

    A server is asked with `token`, or with PYROMETER_TOKEN.
    """
    named = str(where) if where is not None else ""
    if named.startswith(("http://", "https://")):
        return Client(ReadRequest(None, named, {}, "json", token))
    found = where or os.environ.get("PYROMETER_DATA")
    if not found:
        raise AskedWronglyError("connect() of what? Name a data folder or a server, or set PYROMETER_DATA.")
    if not Path(found).is_dir():
        raise FileNotFoundError(f"There is no data folder {str(found)!r}.")
    return Client(ReadRequest(Path(found), None, {}, "json"))


class Client:
    """Whom to ask. Questions take what their commands take: `last="12h"`, `month="2026-10"`, `all=True`, `team=…`."""

    def __init__(self, request: ReadRequest) -> None:
        self._request = request

    def __repr__(self) -> str:
        return f"pyrometer.connect({str(self._request.server or self._request.data)!r})"

    def why(self, **about: About) -> Answer:
        """What burned, and why. Tables: findings, states, unexplained, teams, workloads, timeline."""
        return self.ask("why", **about)

    def cost(self, by: str | Iterable[str] = "team", **about: About) -> Answer:
        """GPU-hours and dollars, grouped."""
        return self.ask("cost", by=by, **about)

    def charges(self, **about: About) -> Answer:
        """What FOCUS is made of: by day, node, team, experiment, workload and price."""
        return self.ask("charges", **about)

    def burn(self, **about: About) -> Answer:
        """What burned without looking for causes. Tables: states, teams, experiments, timeline."""
        return self.ask("burn", **about)

    def top(self, **about: About) -> Answer:
        """Who holds GPUs now."""
        return self.ask("top", **about)

    def cluster(self, **about: About) -> Answer:
        """Every GPU at a minute."""
        return self.ask("cluster", **about)

    def runs(self, **about: About) -> Answer:
        """The training runs."""
        return self.ask("runs", **about)

    def show(self, run: str, **about: About) -> Answer:
        """One run. Tables: metrics (all curves, with dollars), windows, lifecycle, findings; of a pipeline's run its
        steps, of a sweep its trials."""
        return self.ask("show", run=run, **about)

    def signals(self, run: str, **about: About) -> Answer:
        """A run on one axis of time."""
        return self.ask("signals", run=run, **about)

    def worth(self, experiment: str | None = None, **about: About) -> Answer:
        """Experiments, or one of them. Tables of one: runs, curves (loss against dollars)."""
        return self.ask("worth", experiment=experiment, **about)

    def trace(self, run: str, **about: About) -> Answer:
        """A run's life, or one step over all ranks. Tables: spans."""
        return self.ask("trace", run=run, **about)

    def lineage(self, run: str, **about: About) -> Answer:
        """Which data is behind a step or a checkpoint; where a sample went."""
        return self.ask("lineage", run=run, **about)

    def ask(self, what: str, **about: About) -> Answer:
        """Any question of `/api/v1/…`, in the words of its command's options."""
        told = {name: _text(value) for name, value in about.items() if value is not None and value is not False}
        try:
            return Answer(what, self._request.answer(what, **told))
        except click.ClickException as error:
            raise AskedWronglyError(error.format_message()) from None


class Answer(Mapping[str, Any]):
    """An answer: the JSON of the command by its keys, its lists as tables."""

    def __init__(self, what: str, answer: dict[str, Any]) -> None:
        self.what = what
        self.json = answer
        found = _tables(answer)
        first = next((name for name in (MEANT.get(what), "rows") if name in found), None)
        self._rows = dict(sorted(found.items(), key=lambda table: table[0] != first))

    def __getitem__(self, key: str) -> Any:
        return self.json[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.json)

    def __len__(self) -> int:
        return len(self.json)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} ({len(rows)})" for name, rows in self._rows.items())
        return f"<{self.what}: {sizes or ', '.join(self.json)}>"

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of its tables; the first is the one that is meant where none is named."""
        return tuple(self._rows)

    def arrow(self, table: str | None = None) -> pa.Table:
        """A table as Arrow. Times are timestamps in UTC, a workload has four columns, `usd_micro` is exact."""
        return _arrow(self._named(table))

    def pandas(self, table: str | None = None) -> Any:
        """A table as a pandas DataFrame; whole numbers stay whole where some are absent."""
        try:
            import pandas
        except ImportError:
            raise ImportError("`.pandas()` needs pandas: pip install 'pyrometer[notebook]'") from None
        return self.arrow(table).to_pandas(types_mapper={pa.int64(): pandas.Int64Dtype()}.get)

    def _named(self, table: str | None) -> list[Row]:
        if table is None and self._rows:
            return next(iter(self._rows.values()))
        if table not in self._rows:
            named = f"no table {table!r}" if table is not None else "no table"
            raise AskedWronglyError(f"{self.what} has {named}. It has: {', '.join(self._rows) or 'none'}.")
        return self._rows[table]

    def _repr_html_(self) -> str:
        """What a notebook shows: the first table, as text that can do no harm."""
        rows = self._named(None) if self._rows else []
        names = list(rows[0]) if rows else []
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_short(row.get(name)))}</td>" for name in names) + "</tr>"
            for row in rows[:SHOWN_ROWS]
        )
        more = f"{len(rows) - SHOWN_ROWS:,} more rows. " if len(rows) > SHOWN_ROWS else ""
        others = f"Tables: {', '.join(self._rows)}." if len(self._rows) > 1 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{more}{html.escape(others)}</p>"


def _text(value: About) -> str:
    """A parameter as its command's option would have it."""
    if value is True:
        return "1"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, str | int | float):
        return str(value)
    return ",".join(value or ())


# -- from JSON to tables -----------------------------------------------------------------------------------------------


def _tables(answer: dict[str, Any]) -> dict[str, list[Row]]:
    """The lists of an answer, as rows."""
    found: dict[str, list[Row]] = {}
    columns = answer.get("columns")
    inside = [(table, answer[name][table]) for name, table in PARTS.items() if table in (answer.get(name) or {})]
    for name, value in (*inside, *answer.items()):
        if name == "rows" and columns:
            found[name] = [dict(zip(columns, row, strict=True)) for row in value]
        elif name == "metrics" and isinstance(value, dict):
            found[name] = [{"metric": metric, **point} for metric, curve in value.items() for point in _points(curve)]
        elif name == "timeline":
            found[name] = [{**row, **row.pop("states", {})} for row in map(dict, value["rows"])]
        elif isinstance(value, list) and all(isinstance(row, dict) for row in value):
            found[name] = value
    if any("curve" in row for row in found.get("runs", ())):
        found["curves"] = [{"run": row["run"], **point} for row in found["runs"] for point in _points(row["curve"])]
        found["runs"] = [{name: cell for name, cell in row.items() if name != "curve"} for row in found["runs"]]
    return {name: _flat(rows) for name, rows in found.items()}


def _points(curve: list[list[Any]]) -> Iterator[Row]:
    for values in curve:
        point = dict(zip(CURVE, values, strict=False))
        usd_micro = point.get("usd_micro")
        point["time"] = datetime.fromtimestamp(point["time"] / 1000, UTC)
        yield point | {"usd": None if usd_micro is None else usd_micro / USD_MICRO_PER_USD}


def _flat(rows: list[Row]) -> list[Row]:
    """What has parts (a workload, a culprit) as columns of its own: `workload_name`, `culprit_rank`."""
    parts: dict[str, dict[str, None]] = {"workload": dict.fromkeys(WORKLOAD)}
    for row in rows:
        for name, cell in row.items():
            if isinstance(cell, dict):
                parts.setdefault(name, {}).update(dict.fromkeys(cell))
    return [
        {
            column: value
            for name, cell in row.items()
            for column, value in (
                ((f"{name}_{part}", (cell or {}).get(part)) for part in parts[name])
                if name in parts
                else ((name, cell),)
            )
        }
        for row in rows
    ]


def _arrow(rows: list[Row]) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: _column(name, [row.get(name) for row in rows]) for name in names})


def _column(name: str, cells: list[Any]) -> pa.Array:
    """Times are recognised by their names, everything else is what it is."""
    try:
        if name.rpartition("_")[2] in TIMES and all(isinstance(cell, str | None) for cell in cells):
            times = [None if cell is None else datetime.fromisoformat(cell) for cell in cells]
            return pa.array(times, pa.timestamp("ms", "UTC"))
        return pa.array(cells)
    except (ValueError, TypeError):  # of several kinds; Arrow's errors are these, too
        return pa.array([None if cell is None else json.dumps(cell, ensure_ascii=False) for cell in cells])


def _short(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.4g}" if abs(cell) < 1000 else f"{cell:,.0f}"
    text = cell if isinstance(cell, str) else str(cell)
    return text if len(text) <= 80 else text[:79] + "…"
