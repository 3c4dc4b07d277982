"""`pyrometer top`: which workloads hold GPUs, refreshed on a terminal."""

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

from pyrometer.cli.running import ReadRequest, print_json, read_options

EVERY_S = 2.0
LOOK_S = 0.1  # how soon a key or another size is noticed
QUIT_S = 1.0  # how long a reading that is under way is waited for at the end

Answer = dict[str, Any]


@click.command()
@click.option(
    "--every", "every_s", type=click.FloatRange(0.2, 3600), default=EVERY_S, show_default=True, metavar="SECONDS",
    help="How often to look again.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Print once and exit; so it does without a terminal.")
@click.option("--limit", metavar="N", help="So many workloads at most. Default: 200.")
@read_options(default_last="1h", live=True)
def command(asked: ReadRequest, every_s: float, once: bool, limit: str | None) -> None:
    """Which workloads hold GPUs: state, dollars per hour, progress and ETA, the most expensive first. On a terminal it
    looks again every two seconds: q quits, arrows or j and k move, s sorts, / filters."""
    more = {} if limit is None else {"limit": limit}

    def look() -> Answer:
        return asked.answer("top", **more)

    answer = look()  # what is wrong with the question is said before anything else
    if asked.output == "json":
        print_json(answer)
    elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _print_once(answer, _source(asked))
    else:
        with suppress(KeyboardInterrupt):
            _watch(look, answer, _source(asked), every_s)


def _source(asked: ReadRequest) -> str:
    return asked.server or str(asked.data or Path(os.environ.get("PYROMETER_DATA", "")))


def _print_once(answer: Answer, source: str) -> None:
    from rich.console import Console

    from pyrometer.cli.top_text import header, table

    console = Console(highlight=False, soft_wrap=True)
    for line in [*header(answer, source), "", *table(answer["rows"], console.width if console.is_terminal else None)]:
        console.print(line)
    if not answer["rows"]:
        console.print("No workload holds a GPU.")
    if answer["others"]:
        console.print(f"… and {answer['others']:,} more: --limit.")


class _Looker(threading.Thread):
    """Looks again and again beside the screen, so that keys are never waited for."""

    def __init__(self, look: Callable[[], Answer], answer: Answer, every_s: float) -> None:
        super().__init__(daemon=True)
        self.answer = answer
        self.trouble: str | None = None
        self.times = 0
        self._look = look
        self._every_s = every_s
        self._over = threading.Event()

    def run(self) -> None:
        """Until it is over. What goes wrong is said, and tried again."""
        while not self._over.wait(self._every_s):
            try:
                self.answer, self.trouble = self._look(), None
            except Exception as error:  # whatever it is, the screen says it and stays
                self.trouble = f"{_sentence(error)} What is shown is the last that was seen; trying again."
            self.times += 1

    def end(self) -> None:
        """Waits a little for what is under way."""
        self._over.set()
        self.join(QUIT_S)


def _sentence(error: Exception) -> str:
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return first if first.endswith(".") else f"{first}."


class _View(NamedTuple):
    """What the user has chosen."""

    sorting: int = 0
    selected: int = 0
    wanted: str = ""
    typing: bool = False

    def after(self, key: str, rows: int, page: int) -> _View:
        """What is chosen after a key."""
        if self.typing:
            if key == "enter":
                return self._replace(typing=False)
            if key == "escape":
                return self._replace(typing=False, wanted="", selected=0)
            if key == "backspace":
                return self._replace(wanted=self.wanted[:-1], selected=0)
            return self._replace(wanted=self.wanted + key, selected=0) if len(key) == 1 else self
        moves = {
            "up": -1, "k": -1, "down": 1, "j": 1, "page_up": -page, "page_down": page, "home": -rows, "g": -rows,
            "end": rows, "G": rows,
        }  # fmt: skip
        if key in moves:
            return self._replace(selected=min(max(self.selected + moves[key], 0), max(rows - 1, 0)))
        if key == "s":
            return self._replace(sorting=self.sorting + 1, selected=0)
        if key == "/":
            return self._replace(typing=True)
        if key == "escape":
            return self._replace(wanted="", selected=0)
        return self


def _watch(look: Callable[[], Answer], answer: Answer, source: str, every_s: float) -> None:
    """The screen, until q. What would be written to stderr meanwhile (bars, notes) has no place on it."""
    from rich.console import Console
    from rich.live import Live

    from pyrometer.cli.keys import typed_keys

    console = Console(highlight=False)
    looker = _Looker(look, answer, every_s)
    live = Live(
        console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False,
        vertical_overflow="crop",
    )  # fmt: skip
    view = _View()
    with redirect_stderr(io.StringIO()), typed_keys() as keys, live:
        looker.start()
        drawn: object = None
        try:
            while True:
                now = (view, looker.times, console.size)
                if now != drawn:
                    screen = _Screen(looker.answer, source, looker.trouble, view, *console.size)
                    live.update(screen.drawn(), refresh=True)
                    drawn = now
                for key in keys.wait(LOOK_S):
                    if key == "q" and not view.typing:
                        return
                    view = view.after(key, len(screen.rows), screen.room)
        except EOFError:
            return
        finally:
            looker.end()


class _Screen:
    """An answer on a terminal of some size."""

    def __init__(self, answer: Answer, source: str, trouble: str | None, view: _View, width: int, height: int) -> None:
        from pyrometer.cli.top_text import SORTINGS, chosen_rows, header

        self._sorting = SORTINGS[view.sorting % len(SORTINGS)]
        self.rows = chosen_rows(answer["rows"], view.wanted, self._sorting)
        self._answer, self._view, self._width = answer, view, width
        self._head = header(answer, source, trouble)
        self.room = max(1, height - len(self._head) - 5)  # a gap, headings, a gap, the selected row, the keys

    def drawn(self) -> Any:
        """What rich prints."""
        from rich.console import Group
        from rich.text import Text

        from pyrometer.cli.top_text import detail, table

        selected = min(self._view.selected, max(len(self.rows) - 1, 0))
        begin = max(0, min(selected - self.room + 1, len(self.rows) - self.room)) if selected >= self.room else 0
        shown = self.rows[begin : begin + self.room]
        lines = [*self._head, Text(), *table(shown, self._width, selected - begin)]
        if not shown:
            lines.append(Text("No workload matches the filter." if self._view.wanted else "Nobody holds a GPU."))
        lines += [Text()] * (self.room - len(shown) - (not shown) + 1)
        lines.append(detail(shown[selected - begin]) if shown else Text())
        lines.append(self._keys(begin, len(shown)))
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*lines)

    def _keys(self, begin: int, count: int) -> Any:
        from rich.text import Text

        from pyrometer.cli.top_text import KEYS, safe

        if self._view.typing:
            return Text(f"/{safe(self._view.wanted)}▏ Enter keeps it, Esc clears it", style="bold")
        whole = len(self.rows) + (0 if self._view.wanted else self._answer["others"])
        place = f"{begin + 1}–{begin + count} of {whole:,}" if count else "0"
        wanted = f" · filter “{safe(self._view.wanted)}”" if self._view.wanted else ""
        return Text(f"{place}, by {self._sorting.name}{wanted} · {KEYS}", style="dim")
