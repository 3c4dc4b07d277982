"""The files of the page: plain modules from `page/`, its colors, and plotly from its wheel.

They hold no data, so no authentication is needed: the page asks the API. All files are known when the server starts.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from pyrometer.model.states import CAUSE, STATES

PAGES = (
    "/",
    "/experiments",
    "/experiment",
    "/workload",
    "/worth",
    "/run",
    "/step",
    "/lineage",
    "/cluster",
    "/chargeback",
    "/pipelines",
)
# Browsers revalidate the files, so that a new version of the server has a new page at once. The chart library has its
# version in its name, so that browsers keep it and what they compiled, which takes a second.
REVALIDATE = "no-cache"
IMMUTABLE = "public, max-age=31536000, immutable"
MIN_COMPRESSED_BYTES = 1_024
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}


class StaticFile(NamedTuple):
    """A file as it is sent. Large files are compressed once."""

    kind: str
    plain: bytes
    zipped: bytes | None
    tag: str

    @classmethod
    def of(cls, name: str, body: bytes, level: int = 9) -> StaticFile:
        """A file with this name."""
        suffix = name[name.rindex(".") :]
        kind = f"{_TYPES[suffix]}; charset=utf-8"
        zipped = gzip.compress(body, level, mtime=0) if len(body) >= MIN_COMPRESSED_BYTES else None
        return cls(kind, body, zipped, f'"{hashlib.sha256(body).hexdigest()[:16]}"')


async def page(request: Request) -> Response:
    """The HTML document of every page."""
    return _sent(request, _files()["index.html"])


async def file(request: Request) -> Response:
    """A file of the page."""
    name = request.path_params["name"]
    if name == _plotly_name():
        return _sent(request, _plotly(), IMMUTABLE)
    known = _files().get(name)
    return PlainTextResponse("File not found.\n", 404) if known is None else _sent(request, known)


def _sent(request: Request, sent: StaticFile, keep: str = REVALIDATE) -> Response:
    headers = {"ETag": sent.tag, "Cache-Control": keep, "Vary": "Accept-Encoding"}
    if sent.tag in request.headers.get("If-None-Match", ""):
        return Response(None, 304, headers=headers)
    if sent.zipped is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
        return Response(sent.zipped, headers={**headers, "Content-Encoding": "gzip"}, media_type=sent.kind)
    return Response(sent.plain, headers=headers, media_type=sent.kind)


@cache
def _files() -> dict[str, StaticFile]:
    """All files but plotly, by name."""
    render = files("pyrometer.render")
    found = {"colors.css": render.joinpath("colors.css").read_bytes(), "states.js": _states()}
    _gather(files("pyrometer.serve").joinpath("page"), "", found)
    found["index.html"] = found["index.html"].replace(b"/page/plotly.js", f"/page/{_plotly_name()}".encode())
    return {name: StaticFile.of(name, body) for name, body in found.items()}


def _gather(folder: Traversable, prefix: str, found: dict[str, bytes]) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            _gather(entry, f"{prefix}{entry.name}/", found)
        elif entry.name[entry.name.rfind(".") :] in _TYPES:
            found[prefix + entry.name] = entry.read_bytes()


def _states() -> bytes:
    """The states of the model, and the state that colors each cause, as a module."""
    colored = {cause.name: cause.colored_as for cause in CAUSE.values() if cause.colored_as != cause.name}
    named = {"STATES": [state._asdict() for state in STATES], "STATE_OF_CAUSE": colored}
    lines = [f"export const {name} = {json.dumps(value, indent=1)};\n" for name, value in named.items()]
    return f"// Generated from the model.\n{''.join(lines)}".encode()


def warm() -> None:
    """Reads and compresses everything before the first request."""
    _files()
    _plotly()


@cache
def _plotly() -> StaticFile:
    """The chart library, 1.5 MB compressed."""
    return StaticFile.of(
        _plotly_name(), files("plotly").joinpath("package_data", "plotly.min.js").read_bytes(), level=6
    )


@cache
def _plotly_name() -> str:
    return f"plotly-{version('plotly')}.js"
