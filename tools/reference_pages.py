"""Writes docs/reference/ from the code: `python tools/reference_pages.py`.

Commands come from their options, settings from the table that reads them, metrics from the collectors that show them,
routes and answers from the OpenAPI document, states and causes from the model and the detectors, the glossary from the
model. Examples are the commands of the other pages, which a test runs.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from prometheus_client.core import Metric

from pyrometer.agent.dcgm_text import METRICS, OWN_METRICS
from pyrometer.cli import COMMANDS
from pyrometer.model.glossary import GLOSSARY
from pyrometer.model.settings import CHOICES, HELP, Settings
from pyrometer.model.states import CLAIMS, EVIDENCE, IMMEDIATE_CAUSES, INTERVAL_STATES, STATE, STATES
from pyrometer.serve.core import Core
from pyrometer.serve.http.openapi import document
from pyrometer.serve.main import build_services
from pyrometer.store import Store
from pyrometer.train.run.environment import VARIABLES

sys.path[:0] = [str(Path(__file__).parent)]
from written import PAGES, REPOSITORY, blocks  # noqa: E402

FOLDER = REPOSITORY / "docs" / "reference"
MAX_EXAMPLES = 6
WRITTEN = "<!-- Written by `make reference` from {source}. Change it there. -->"
# Variables of the commands themselves, in addition to those of settings and of the SDK.
OF_COMMANDS = {
    "PYROMETER_DATA": "The data folder, if `--data` is not passed.",
    "PYROMETER_SETTINGS": "A YAML file with settings, read after the data folder's `settings.yaml`.",
    "PYROMETER_TOKEN": "The bearer token for `--server`.",
}


# -- Markdown ---------------------------------------------------------------------------------------------------------


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table. Bars in cells are escaped."""
    lines = [tuple(heads), *(tuple(row) for row in rows)]
    lines.insert(1, ("---",) * len(lines[0]))
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def code(text: str) -> str:
    """A text as code, or nothing."""
    return f"`{text}`" if text else ""


def fenced(lines: Iterable[str], language: str = "sh") -> str:
    """A block of code."""
    return "\n".join([f"```{language}", *lines, "```"])


def page(title: str, source: str, *parts: str) -> str:
    """A page, with where it comes from."""
    return "\n\n".join([f"# {title}", WRITTEN.format(source=source), *(part for part in parts if part)]) + "\n"


def plain(text: str) -> str:
    """A docstring as paragraphs."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(text)).strip()


# -- commands ---------------------------------------------------------------------------------------------------------

SHARED = (
    "--data",
    "--server",
    "--last",
    "--since",
    "--until",
    "--month",
    "--all",
    "--tz",
    "--price",
    "--team",
    "--experiment",
)
READ = "[options of every read command](#options-of-every-read-command)"


def commands() -> str:
    """Every command, in the order of `pyrometer --help`."""
    listed = table(
        ("command", "does"), ((f"[`pyrometer {name}`](#pyrometer-{name})", one.help) for name, one in COMMANDS.items())
    )
    shared = [option for option in _command("why").params if _spelled(option)[0] in SHARED]
    return page(
        "Commands",
        "src/pyrometer/cli/",
        "Exit codes: 0 for success, 2 for a usage error, 1 for a failure. An error is one sentence on stderr. `pyrometer run` exits with the code of its command.",
        listed,
        "## Options of every read command",
        "They set the source, the time range, the price and the filters of a question. The default of `--last` differs by command.",
        table(("option", "meaning"), ((_option(one), _meaning(one)) for one in shared)),
        *(part for name in COMMANDS for part in _of_command(name)),
    )


def _command(name: str) -> click.Command:
    found: click.Command = importlib.import_module(f"pyrometer.cli.commands.{COMMANDS[name].module}").command
    return found


def _of_command(name: str) -> Iterator[str]:
    yield f"## pyrometer {name}"
    if not COMMANDS[name].extra:
        yield from _of_parser(importlib.import_module(f"pyrometer.cli.commands.{COMMANDS[name].module}").parser())
    else:
        command = _command(name)
        yield from _of_click(f"pyrometer {name}", command)
        if isinstance(command, click.Group):
            for below, one in command.commands.items():
                yield f"### pyrometer {name} {below}"
                yield from _of_click(f"pyrometer {name} {below}", one)
    needed = {"": "The base install is enough.", "agent": "Needs `pip install 'pyrometer[agent]'`."}
    yield needed.get(COMMANDS[name].extra, "")
    if examples := _examples(name):
        yield fenced(examples)


def _of_click(spelled: str, command: click.Command) -> Iterator[str]:
    yield plain(command.help or "")
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    options = [one for one in command.params if isinstance(one, click.Option)]
    below = "COMMAND " if isinstance(command, click.Group) else ""
    named = " ".join(one.make_metavar(click.Context(command)) for one in arguments)
    usage = f"{spelled} {below}{named} {'[OPTIONS]' if options else ''}"
    yield fenced([" ".join(usage.split())], "text")
    shared = {_spelled(one)[0] for one in options} >= set(SHARED)
    own = [one for one in options if not (shared and _spelled(one)[0] in SHARED)]
    chosen = [one for one in arguments if isinstance(one.type, click.Choice)]
    if own or chosen:
        rows = [(code(one.human_readable_name), f"One of {_choices(one)}.") for one in chosen]
        yield table(("option", "meaning"), [*rows, *((_option(one), _meaning(one)) for one in own)])
    if shared:
        last = next(one for one in options if "--last" in one.opts)
        yield f"And the {READ}. The default time range is {(last.help or '').rpartition('Default: ')[2].rstrip('.')}."
    if isinstance(command.epilog, str):
        yield plain(command.epilog)


def _of_parser(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield plain(parser.description or "")
    yield fenced([parser.format_usage().removeprefix("usage: ").removeprefix("Usage: ").strip()], "text")
    rows = [
        (code(" ".join([", ".join(one.option_strings), one.metavar or ""]).strip()), one.help or "")
        for one in parser._actions
    ]
    yield table(("option", "meaning"), rows)


def _spelled(option: click.Parameter) -> tuple[str, ...]:
    return tuple(sorted(option.opts, key=len, reverse=True))


def _option(option: click.Option) -> str:
    value = "" if option.is_flag or isinstance(option.type, click.Choice) else f" {option.metavar or 'N'}"
    return code(f"{', '.join(option.opts)}{value}")


def _meaning(option: click.Option) -> str:
    text = option.help or ""
    if isinstance(option.type, click.Choice):
        text += f" One of {_choices(option)}."
    is_shown = option.show_default or isinstance(option.type, click.Choice)
    if is_shown and option.default not in (None, ()) and not option.is_flag:
        text += f" Default: `{option.default}`."
    return text


def _choices(parameter: click.Parameter) -> str:
    assert isinstance(parameter.type, click.Choice)
    return ", ".join(map(code, map(str, parameter.type.choices)))


def _examples(name: str) -> list[str]:
    """Commands of this name on the other pages."""
    found: dict[str, None] = {}
    for path in PAGES:
        if FOLDER not in path.parents:
            for block in blocks(path):
                found |= {c.text: None for c in block.commands() if c.text.split()[:2] == ["pyrometer", name]}
    return list(found)[:MAX_EXAMPLES]


# -- settings ---------------------------------------------------------------------------------------------------------


def settings() -> str:
    """Every setting and every variable."""
    rows = []
    lists = []
    for name, default in Settings._field_defaults.items():
        meaning = HELP[name]
        if name in CHOICES and "`" not in meaning:
            meaning += f": {' or '.join(map(code, CHOICES[name]))}"
        if isinstance(default, tuple) and default:
            lists += [f"## {name}", fenced([f"{name}:", *(f"  - {rule}" for rule in default)], "yaml")]
            shown = f"[a list](#{name})"
        else:
            shown = code(" ".join(default) if isinstance(default, tuple) else str(default))
        rows.append((code(name), shown, meaning))
    return page(
        "Settings",
        "src/pyrometer/model/settings.py and src/pyrometer/train/run/environment.py",
        "Settings are read from `settings.yaml` in the data folder, then from the YAML file in `PYROMETER_SETTINGS`, then from variables: `PYROMETER_` and the name in capitals (`PYROMETER_IDLE_GAP_MS`). "
        "Later sources win. Unknown names and invalid values are errors. Lists in variables are separated by commas.",
        table(("setting", "default", "meaning"), rows),
        *lists,
        "## Variables of commands",
        table(("variable", "meaning"), ((code(name), text) for name, text in OF_COMMANDS.items())),
        "## Variables of training processes",
        "The [SDK](../training.md) reads only these. `pyrometer run` sets some of them for its command.",
        table(("variable", "meaning"), ((code(name), text) for name, text in VARIABLES.items())),
    )


# -- metrics ----------------------------------------------------------------------------------------------------------


def metrics() -> str:
    """The metrics of the server and of the agent."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), create=True) as store:
        server = build_services(Core(store, Settings(audit_log="no")), open_to_all=True)
        ledger, runs = _shown(server.metrics.ledger.collect()), _shown(server.metrics.runs.collect())
        own = _shown(one for one in server.collectors[-1].collect() if one.name.startswith("pyrometer_"))
    heads = ("metric", "type", "labels", "meaning")
    of_agent = ("metric", "type", "meaning")
    return page(
        "Metrics",
        "src/pyrometer/export/ and src/pyrometer/serve/tasks/vitals.py",
        "`GET /metrics` of a server requires a token with the role `viewer` ([how to scrape it](../grafana.md)). `GET /metrics` of the [agent](../gpu-agent.md) requires no token. "
        "[Grafana](../grafana.md#metrics) explains how to add these up.",
        "## The ledger",
        table(heads, ledger),
        "## Training runs",
        table(heads, runs),
        "## The server itself",
        table(heads, own),
        "Also `process_*` of the Prometheus client: CPU time, memory, files.",
        "## The agent: metrics that DCGM does not have",
        table(of_agent, ((code(name), one.type, one.help) for name, one in OWN_METRICS.items())),
        "## The agent: GPUs, with the names of dcgm-exporter",
        table(of_agent, ((code(name), one.type, one.help) for name, one in METRICS.items())),
    )


def _shown(families: Iterable[Metric]) -> list[tuple[str, ...]]:
    return [
        (
            code(one.name + ("_total" if one.type == "counter" else "")),
            one.type,
            ", ".join(map(code, getattr(one, "_labelnames", ()))),
            one.documentation,
        )
        for one in families
    ]


# -- the API ----------------------------------------------------------------------------------------------------------


def api() -> str:
    """Every question with its parameters, from the OpenAPI document."""
    openapi = document()
    operations = [
        (f"{method.upper()} {path}", one)
        for path, methods in openapi["paths"].items()
        for method, one in methods.items()
    ]
    questions = [one for named, one in operations if named.startswith("GET ")]
    everywhere = set.intersection(*({_named(p) for p in one["parameters"]} for one in questions))
    first = questions[0]
    shared = [one for one in first["parameters"] if _named(one) in everywhere]
    parts = []
    for named, one in operations:
        own = [p for p in one.get("parameters", ()) if _named(p) not in everywhere]
        kind = next(iter(one["responses"]["200"]["content"]))
        name = one["operationId"]
        form = (
            f"a file, `{kind}`" if name.startswith("export_") or name == "backup" else f"[`{name}`](answers.md#{name})"
        )
        parts += [f"## {named}", one["summary"], f"Answers with {form}.", _parameters(own) if own else ""]
    refusals = [(code(status), response["description"]) for status, response in first["responses"].items()]
    return page(
        "HTTP API: questions",
        "src/pyrometer/serve/http/openapi.py",
        "`GET /api/v1/openapi.json` (OpenAPI 3.1) has the same content in machine-readable form. [The HTTP API](../api.md) describes the other routes, conditional requests, pagination and streams.",
        "## Parameters of every question",
        _parameters(shared),
        "## Status codes",
        table(("status", "meaning"), refusals),
        *parts,
    )


def _named(parameter: dict[str, Any]) -> tuple[str, str]:
    return parameter["name"], parameter["description"]


def _parameters(parameters: Iterable[dict[str, Any]]) -> str:
    rows = []
    for one in parameters:
        needed = " Required." if one.get("required") else ""
        rows.append((code(one["name"]), _kind(one["schema"]), one["description"] + needed))
    return table(("parameter", "type", "meaning"), rows)


def _kind(schema: dict[str, Any]) -> str:
    """What a value is, in words."""
    if "enum" in schema:
        return " or ".join(map(code, schema["enum"]))
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"list of {_kind(schema['items'])}" if "items" in schema else "list"
    return str(kind)


# -- answers ----------------------------------------------------------------------------------------------------------


def answers() -> str:
    """The JSON of every answer, field by field."""
    parts = []
    for one in (one for methods in document()["paths"].values() for one in methods.values()):
        schema = one["responses"]["200"]["content"].get("application/json", {}).get("schema")
        if schema is None or not one["operationId"].isidentifier() or one["operationId"].startswith("export_"):
            continue
        parts += [f"## {one['operationId']}", one["summary"]]
        variants = schema.get("anyOf", [schema])
        for number, variant in enumerate(variants):
            if len(variants) > 1:
                parts.append("Without an experiment:" if number == 0 else "Of one experiment:")
            parts.append(table(("field", "type"), ((code(name), kind) for name, kind in _fields(variant))))
    return page(
        "JSON answers",
        "src/pyrometer/serve/http/openapi.py",
        "Commands print the same JSON with `-o json` as the [API](api.md) returns. These fields are always present; an answer may have more. Money is an integer `usd_micro` and a rounded `usd`, which are null without a price. "
        "Times are ISO 8601 in the requested time zone, and `…_ms` are milliseconds. `[]` is each item of a list.",
        *parts,
    )


def _fields(schema: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, one in schema.get("properties", {}).items():
        yield f"{before}{name}", _kind(one)
        inner, suffix = (one.get("items", {}), "[]") if one.get("type") == "array" else (one, "")
        yield from _fields(inner, f"{before}{name}{suffix}.")


# -- states and causes ------------------------------------------------------------------------------------------------


def causes() -> str:
    """States and causes, in order, with the description of each detector."""
    claimed: dict[str, list[str]] = {state.name: [] for state in STATES}
    for cause, states in CLAIMS.items():
        for state in states:
            claimed[state].append(cause)
    rows = (
        (
            code(one.name),
            one.family,
            one.meaning,
            str(INTERVAL_STATES.index(one.name) + 1) if one.name in INTERVAL_STATES else "",
            ", ".join(f"[`{cause}`](#{cause})" for cause in claimed[one.name]),
        )
        for one in STATES
    )
    parts = []
    for number, (cause, states) in enumerate(CLAIMS.items(), start=1):
        description = plain(importlib.import_module(f"pyrometer.causes.{cause}").__doc__ or "")
        immediate = (
            " It is reported at once, at any cost so far, because it does not get better by itself."
            if cause in IMMEDIATE_CAUSES
            else ""
        )
        taken = ", ".join(f"`{state}` ({STATE[state].family})" for state in states)
        parts += [
            f"## {cause}",
            re.sub(rf"^`{cause}`: (.)", lambda found: found[1].upper(), description),
            f"Claims {taken}; number {number} in order.{immediate}",
        ]
    return page(
        "States and causes",
        "src/pyrometer/model/states.py and src/pyrometer/causes/",
        "[Concepts](../concepts.md#states) explains how time gets its state, [Causes](../causes.md) what each cause finds with which evidence, and [Detection](../detection.md) how often it is right.",
        "## States",
        f"Every millisecond of every GPU is in one of them. Where intervals overlap, the state with the lower *order* gets the millisecond. Evidence is {', '.join(EVIDENCE)}.",
        table(("state", "family", "meaning", "order", "claimed by"), rows),
        "Causes claim in the order below. A millisecond is claimed only once.",
        *parts,
    )


# -- glossary ---------------------------------------------------------------------------------------------------------


def glossary() -> str:
    """The vocabulary, by topic."""
    parts = []
    for topic, terms in GLOSSARY.items():
        rows = ((f"**{one.name}**", one.meaning, ", ".join(one.avoid)) for one in terms)
        parts += [f"## {topic}", table(("term", "meaning", "not"), rows)]
    return page(
        "Glossary",
        "src/pyrometer/model/glossary.py",
        "One word per concept, in commands, answers, pages, code and documentation. [States and causes](causes.md) have a page of their own.",
        *parts,
    )


PAGES_OF: dict[str, Callable[[], str]] = {
    "commands.md": commands,
    "settings.md": settings,
    "metrics.md": metrics,
    "api.md": api,
    "answers.md": answers,
    "causes.md": causes,
    "glossary.md": glossary,
}


def main() -> None:
    """Writes all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, made in PAGES_OF.items():
        (FOLDER / name).write_text(made(), encoding="utf-8")


if __name__ == "__main__":
    main()
