"""The Python client for notebooks: the answers of the commands as Arrow tables, pandas frames and HTML tables.

    pyrometer.connect("pyrometer-demo").cost(by="team,state").pandas()

Questions, parameters and answers are those of the commands: `pyrometer cost --by team,state -o json`. This module
calculates nothing.
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
from pyrometer.export.csv import WORKLOAD_COLUMNS
from pyrometer.model.units import USD_MICRO_PER_USD

Row = dict[str, Any]
Parameter = str | int | float | bool | datetime | Iterable[str] | None  # a value of a command-line option

MAX_SHOWN_ROWS = 20  # in a notebook
TIME_SUFFIXES = (
    "from",
    "to",
    "at",
    "started",
    "ended",
    "seen",
    "detected",
    "since",
)  # the last words of names of time columns
NESTED_TABLES = {"pipeline": "steps", "sweep": "trials"}  # of `show`: nested tables by key
CURVE_COLUMNS = ("step", "time", "value", "gpu_ms", "usd_micro")  # the values of a point in `show` and `worth`
# The default table of each answer; else `rows`, else the first.
DEFAULT_TABLES = {
    "why": "findings",
    "burn": "states",
    "show": "metrics",
    "worth": "runs",
    "trace": "spans",
    "lineage": "updates",
}


class NotebookQueryError(ValueError):
    """An invalid question. The message names the parameter, the value and the fix."""


def connect(where: str | Path | None = None, *, token: str | None = None) -> Client:
    """Connects to a data folder or to the address of a server. The default is the folder in PYROMETER_DATA.

    A server is called with `token`, or with the token in PYROMETER_TOKEN.
    """
    named = str(where) if where is not None else ""
    if named.startswith(("http://", "https://")):
        return Client(ReadRequest(None, named, {}, "json", token))
    found = where or os.environ.get("PYROMETER_DATA")
    if not found:
        raise NotebookQueryError("No data folder or server: pass one to connect(), or set PYROMETER_DATA.")
    if not Path(found).is_dir():
        raise FileNotFoundError(f"Data folder {str(found)!r} not found.")
    return Client(ReadRequest(Path(found), None, {}, "json"))


class Client:
    """A client for one data folder or server. Methods take the options of their commands: `last="12h"`, `all=True`."""

    def __init__(self, request: ReadRequest) -> None:
        self._request = request

    def __repr__(self) -> str:
        return f"pyrometer.connect({str(self._request.server or self._request.data)!r})"

    def why(self, **parameters: Parameter) -> Answer:
        """Waste and its causes. Tables: findings, states, unexplained, teams, workloads, timeline."""
        return self.ask("why", **parameters)

    def cost(self, by: str | Iterable[str] = "team", **parameters: Parameter) -> Answer:
        """GPU-hours and dollars, grouped."""
        return self.ask("cost", by=by, **parameters)

    def charges(self, **parameters: Parameter) -> Answer:
        """The charges behind FOCUS: by day, node, team, experiment, workload and price."""
        return self.ask("charges", **parameters)

    def burn(self, **parameters: Parameter) -> Answer:
        """GPU time by state, without causes. Tables: states, teams, experiments, timeline."""
        return self.ask("burn", **parameters)

    def top(self, **parameters: Parameter) -> Answer:
        """The current holders of GPUs."""
        return self.ask("top", **parameters)

    def cluster(self, **parameters: Parameter) -> Answer:
        """Every GPU at one minute."""
        return self.ask("cluster", **parameters)

    def runs(self, **parameters: Parameter) -> Answer:
        """The training runs."""
        return self.ask("runs", **parameters)

    def show(self, run: str, **parameters: Parameter) -> Answer:
        """One run. Tables: metrics (all curves, with dollars), windows, lifecycle, findings; steps of a pipeline run,
        trials of a sweep."""
        return self.ask("show", run=run, **parameters)

    def signals(self, run: str, **parameters: Parameter) -> Answer:
        """All signals of a run on one time axis."""
        return self.ask("signals", run=run, **parameters)

    def worth(self, experiment: str | None = None, **parameters: Parameter) -> Answer:
        """All experiments, or one experiment. Tables of one experiment: runs, curves (loss against dollars)."""
        return self.ask("worth", experiment=experiment, **parameters)

    def trace(self, run: str, **parameters: Parameter) -> Answer:
        """The lifecycle of a run, or one step on all ranks. Tables: spans."""
        return self.ask("trace", run=run, **parameters)

    def lineage(self, run: str, **parameters: Parameter) -> Answer:
        """The data behind a step or a checkpoint, or the steps that used a sample."""
        return self.ask("lineage", run=run, **parameters)

    def ask(self, what: str, **parameters: Parameter) -> Answer:
        """Any question of `/api/v1/…`, with the options of its command as parameters."""
        options = {name: _text(value) for name, value in parameters.items() if value is not None and value is not False}
        try:
            return Answer(what, self._request.answer(what, **options))
        except click.ClickException as error:
            raise NotebookQueryError(error.format_message()) from None


class Answer(Mapping[str, Any]):
    """An answer: a mapping with the JSON of the command. Its lists are available as tables."""

    def __init__(self, what: str, answer: dict[str, Any]) -> None:
        self.what = what
        self.json = answer
        found = _tables(answer)
        first = next((name for name in (DEFAULT_TABLES.get(what), "rows") if name in found), None)
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
        """The names of the tables. The first one is the default."""
        return tuple(self._rows)

    def arrow(self, table: str | None = None) -> pa.Table:
        """A table as Arrow. Times are timestamps in UTC, a workload has four columns, `usd_micro` is exact."""
        return _arrow(self._table(table))

    def pandas(self, table: str | None = None) -> Any:
        """A table as a pandas DataFrame. Integer columns stay integers if values are absent."""
        try:
            import pandas
        except ImportError:
            raise ImportError("`.pandas()` needs pandas: pip install 'pyrometer[notebook]'") from None
        return self.arrow(table).to_pandas(types_mapper={pa.int64(): pandas.Int64Dtype()}.get)

    def _table(self, table: str | None) -> list[Row]:
        if table is None and self._rows:
            return next(iter(self._rows.values()))
        if table not in self._rows:
            missing = "no tables" if table is None else f"no table {table!r}"
            raise NotebookQueryError(f"{self.what} has {missing}. It has: {', '.join(self._rows) or 'none'}.")
        return self._rows[table]

    def _repr_html_(self) -> str:
        """The first table as HTML with escaped text, for display in a notebook."""
        rows = self._table(None) if self._rows else []
        names = list(rows[0]) if rows else []
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_short_text(row.get(name)))}</td>" for name in names) + "</tr>"
            for row in rows[:MAX_SHOWN_ROWS]
        )
        more = f"{len(rows) - MAX_SHOWN_ROWS:,} more rows. " if len(rows) > MAX_SHOWN_ROWS else ""
        others = f"Tables: {', '.join(self._rows)}." if len(self._rows) > 1 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{more}{html.escape(others)}</p>"


def _text(value: Parameter) -> str:
    """A parameter as the text of a command-line option."""
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
    inside = [
        (table, answer[name][table]) for name, table in NESTED_TABLES.items() if table in (answer.get(name) or {})
    ]
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
        point = dict(zip(CURVE_COLUMNS, values, strict=False))
        usd_micro = point.get("usd_micro")
        point["time"] = datetime.fromtimestamp(point["time"] / 1000, UTC)
        yield point | {"usd": None if usd_micro is None else usd_micro / USD_MICRO_PER_USD}


def _flat(rows: list[Row]) -> list[Row]:
    """Rows with nested objects (a workload, a culprit) as separate columns: `workload_name`, `culprit_rank`."""
    parts: dict[str, dict[str, None]] = {"workload": dict.fromkeys(WORKLOAD_COLUMNS)}
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
    """A column as Arrow. Time columns are recognized by their names."""
    try:
        if name.rpartition("_")[2] in TIME_SUFFIXES and all(isinstance(cell, str | None) for cell in cells):
            times = [None if cell is None else datetime.fromisoformat(cell) for cell in cells]
            return pa.array(times, pa.timestamp("ms", "UTC"))
        return pa.array(cells)
    except (ValueError, TypeError):  # mixed types; the errors of Arrow are subclasses of these
        return pa.array([None if cell is None else json.dumps(cell, ensure_ascii=False) for cell in cells])


def _short_text(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.4g}" if abs(cell) < 1000 else f"{cell:,.0f}"
    text = cell if isinstance(cell, str) else str(cell)
    return text if len(text) <= 80 else text[:79] + "…"
