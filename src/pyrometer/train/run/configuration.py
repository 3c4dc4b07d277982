"""What a run computes, as one digest: runs with the same digest compute the same.

The digest contains the text and arguments of the program, the shapes of the parameters, the settings of the optimizer,
the number of ranks, the seed, and the first batches. It does not contain where results go and what the run is called.
It cannot contain what is invisible from outside, like an environment variable that the program reads, so comparisons of
runs look at their losses too.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

BATCHES = 4  # the first batches of a run
MAX_FILE_BYTES = 2**20  # of a file that an argument names
_NAMES = (
    "name",
    "out",
    "dir",
    "log",
    "path",
    "port",
    "host",
    "addr",
    "id",
    "tag",
    "note",
    "resume",
    "save",
    "wandb",
    "mlflow",
    "project",
    "group",
    "user",
    "token",
    "key",
    "rank",
    "node",
)
_VALUES = (bool, int, float, str)


class Configuration:
    """Collects what the run computes, once, on the training thread at the end of the first step."""

    def __init__(self, torch: Any, optimizer: Any, ranks: int) -> None:
        groups = optimizer.param_groups
        shapes = [[list(parameter.shape), str(parameter.dtype)] for group in groups for parameter in group["params"]]
        settings = [{name: value for name, value in sorted(group.items()) if _is_plain(value)} for group in groups]
        self._sizes = [parameter.numel() for group in groups for parameter in group["params"]]
        self._optimizer = type(optimizer).__name__
        self._seed = torch.initial_seed()
        self._ranks = ranks
        self._facts: list[Any] = [_content(Path(sys.argv[0])), arguments(sys.argv[1:]), shapes, self._optimizer]
        self._facts += [settings, self._seed, ranks]

    def digest(self, batches: Sequence[Mapping[str, Any]]) -> str:
        """A digest that is equal for equal runs. The first micro-batches are messages in the order of their use."""
        drawn = [[batch.get(name) for name in ("dataset", "step", "micro_batch", "samples")] for batch in batches]
        return hashlib.sha256(json.dumps([self._facts, drawn], default=str).encode()).hexdigest()[:32]

    def text(self, batches: Sequence[Mapping[str, Any]]) -> str:
        """The content of the digest, for people."""
        known = [batch["dataset"] for batch in batches if batch.get("samples") is not None]
        data = f", the first batches of {known[0]}" if known else ""
        ranks = "1 rank" if self._ranks == 1 else f"{self._ranks} ranks"
        return (
            f"{Path(sys.argv[0]).name}, {sum(self._sizes):,} parameters, {self._optimizer}, {ranks}, "
            f"seed {self._seed}{data}"
        )


def arguments(words: Sequence[str]) -> list[str]:
    """The arguments that affect the computation: files by content, without output paths and names of the run."""
    kept: list[str] = []
    named = ""  # the option whose value comes next
    for word in words:
        option, equals, value = word.partition("=")
        if word.startswith("-") and not _is_number(word):
            named = "" if equals else option
            kept += [option] if not equals else _kept_option(option, value)
        elif equals and not named:  # in Hydra's style
            kept += _kept_option(option, value)
        else:
            kept += _kept_option(named, word)
            named = ""
    return kept


def _kept_option(option: str, value: str) -> list[str]:
    words = option.lower().replace("-", "_").replace(".", "_").split("_")
    if any(name in words for name in _NAMES):
        return []
    content = _content(Path(value)) if value else None
    if content is not None:
        return [option, content]
    return [] if os.sep in value else [option, value]


def _content(path: Path) -> str | None:
    """The digest of a file; None if there is no file or it is too large."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return None
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, Iterable) and not isinstance(value, str):
        return isinstance(value, list | tuple) and all(isinstance(one, _VALUES) for one in value)
    return value is None or isinstance(value, _VALUES)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
