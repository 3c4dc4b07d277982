"""`pyrometer top`: a live view of the workloads that hold GPUs."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any, NamedTuple

import click

from pyrometer.cli.command_support import ReadRequest, print_json, read_options

EVERY_S = 2.0
POLL_S = 0.1  # how soon a key or a new terminal size takes effect
QUIT_S = 1.0  # how long quitting waits for a running query

Answer = dict[str, Any]


@click.command()
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0.2, 3600),
    default=EVERY_S,
    show_default=True,
    metavar="SECONDS",
    help="How often to refresh.",
)
@click.option("--once", is_flag=True, help="Print once and exit. This is the default when stdout is not a terminal.")
@click.option("--limit", metavar="N", help="Show at most N workloads. Default: 200.")
@read_options(default_last="1h", live=True)
def command(request: ReadRequest, every_s: float, once: bool, limit: str | None) -> None:
    """Shows which workloads hold GPUs, with state, dollars per hour, progress and ETA, most expensive first. On a
    terminal the view refreshes every two seconds: q quits, arrows or j and k move, s sorts, / filters."""
    parameters = {} if limit is None else {"limit": limit}

    def query() -> Answer:
        return request.answer("top", **parameters)

    answer = query()  # an invalid question fails before the screen changes
    if request.output == "json":
        print_json(answer)
    elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _print_once(answer, _source(request))
    else:
        with suppress(KeyboardInterrupt):
            _watch(query, answer, _source(request), every_s)


def _source(request: ReadRequest) -> str:
    return request.server or str(request.data or Path(os.environ.get("PYROMETER_DATA", "")))


def _print_once(answer: Answer, source: str) -> None:
    from rich.console import Console

    from pyrometer.render.top_text import header, table

    console = Console(highlight=False, soft_wrap=True)
    for line in [*header(answer, source), "", *table(answer["rows"], console.width if console.is_terminal else None)]:
        console.print(line)
    if not answer["rows"]:
        console.print("No workload holds a GPU.")
    if answer["others"]:
        console.print(f"… and {answer['others']:,} more. Show them with --limit.")


class _Refresher(threading.Thread):
    """Repeats the question in the background, so that keys always respond at once."""

    def __init__(self, query: Callable[[], Answer], answer: Answer, every_s: float) -> None:
        super().__init__(daemon=True)
        self.answer = answer
        self.error_text: str | None = None
        self.times = 0
        self._query = query
        self._every_s = every_s
        self._ended = threading.Event()

    def run(self) -> None:
        """Repeats the question until `end`. An error is shown, and the question is tried again."""
        while not self._ended.wait(self._every_s):
            try:
                self.answer, self.error_text = self._query(), None
            except Exception as error:  # the screen shows any error and stays open
                self.error_text = f"{_sentence(error)} Showing the last answer; retrying."
            self.times += 1

    def end(self) -> None:
        """Stops, and waits briefly for a running query."""
        self._ended.set()
        self.join(QUIT_S)


def _sentence(error: Exception) -> str:
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return first if first.endswith(".") else f"{first}."


class _View(NamedTuple):
    """The sort order, selected row and filter that the user chose."""

    sorting: int = 0
    selected: int = 0
    filter_text: str = ""
    typing: bool = False

    def after(self, key: str, rows: int, page: int) -> _View:
        """The view after a key was pressed. `rows`: how many there are; `page`: how many fit the screen."""
        if self.typing:
            if key == "enter":
                return self._replace(typing=False)
            if key == "escape":
                return self._replace(typing=False, filter_text="", selected=0)
            if key == "backspace":
                return self._replace(filter_text=self.filter_text[:-1], selected=0)
            return self._replace(filter_text=self.filter_text + key, selected=0) if len(key) == 1 else self
        moves = {
            "up": -1,
            "k": -1,
            "down": 1,
            "j": 1,
            "page_up": -page,
            "page_down": page,
            "home": -rows,
            "g": -rows,
            "end": rows,
            "G": rows,
        }
        if key in moves:
            return self._replace(selected=min(max(self.selected + moves[key], 0), max(rows - 1, 0)))
        if key == "s":
            return self._replace(sorting=self.sorting + 1, selected=0)
        if key == "/":
            return self._replace(typing=True)
        if key == "escape":
            return self._replace(filter_text="", selected=0)
        return self


def _watch(query: Callable[[], Answer], answer: Answer, source: str, every_s: float) -> None:
    """Shows the screen until q. Output on stderr (progress bars, notes) is discarded meanwhile: it would garble it."""
    from rich.console import Console
    from rich.live import Live

    from pyrometer.cli.terminal_keys import typed_keys

    console = Console(highlight=False)
    refresher = _Refresher(query, answer, every_s)
    live = Live(
        console=console,
        screen=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
        vertical_overflow="crop",
    )
    view = _View()
    with redirect_stderr(io.StringIO()), typed_keys() as keys, live:
        refresher.start()
        shown: object = None
        try:
            while True:
                now = (view, refresher.times, console.size)
                if now != shown:
                    screen = _Screen(refresher.answer, source, refresher.error_text, view, *console.size)
                    live.update(screen.lines(), refresh=True)
                    shown = now
                for key in keys.wait(POLL_S):
                    if key == "q" and not view.typing:
                        return
                    view = view.after(key, len(screen.rows), screen.room)
        except EOFError:
            return
        finally:
            refresher.end()


class _Screen:
    """An answer laid out for a terminal of a given size."""

    def __init__(
        self, answer: Answer, source: str, error_text: str | None, view: _View, width: int, height: int
    ) -> None:
        from pyrometer.render.top_text import SORTINGS, chosen_rows, header

        self._sorting = SORTINGS[view.sorting % len(SORTINGS)]
        self.rows = chosen_rows(answer["rows"], view.filter_text, self._sorting)
        self._answer, self._view, self._width = answer, view, width
        self._head = header(answer, source, error_text)
        self.room = max(1, height - len(self._head) - 5)  # a gap, headings, a gap, the selected row, the keys

    def lines(self) -> Any:
        """The lines for rich to print."""
        from rich.console import Group
        from rich.text import Text

        from pyrometer.render.top_text import detail, table

        selected = min(self._view.selected, max(len(self.rows) - 1, 0))
        begin = max(0, min(selected - self.room + 1, len(self.rows) - self.room)) if selected >= self.room else 0
        shown = self.rows[begin : begin + self.room]
        lines = [*self._head, Text(), *table(shown, self._width, selected - begin)]
        if not shown:
            lines.append(
                Text("No workload matches the filter." if self._view.filter_text else "No workload holds a GPU.")
            )
        lines += [Text()] * (self.room - len(shown) - (not shown) + 1)
        lines.append(detail(shown[selected - begin]) if shown else Text())
        lines.append(self._keys(begin, len(shown)))
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*lines)

    def _keys(self, begin: int, count: int) -> Any:
        from rich.text import Text

        from pyrometer.render.top_text import KEYS, safe

        if self._view.typing:
            return Text(f"/{safe(self._view.filter_text)}▏ Enter applies, Esc clears", style="bold")
        total = len(self.rows) + (0 if self._view.filter_text else self._answer["others"])
        place = f"{begin + 1}–{begin + count} of {total:,}" if count else "0"
        filter_text = f" · filter “{safe(self._view.filter_text)}”" if self._view.filter_text else ""
        return Text(f"{place}, by {self._sorting.name}{filter_text} · {KEYS}", style="dim")
