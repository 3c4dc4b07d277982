"""The version of the accounting rules, and the provenance that each ledger part records.

A part stays valid until its inputs change. A new version of the rules, or a new value of a setting that the ledger
depends on, rebuilds open time only: closed months keep their parts until `pyrometer rebuild`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple, Self

import duckdb

from pyrometer.account.build import sql
from pyrometer.identify.gpus.gpu_models import gpu_models
from pyrometer.model.settings import Settings

# Raise this when the same facts give another ledger, other sums or other energy. tests/account/build/test_rules.py
# compares results and fails when they change without it. Comments and refactoring do not change it.
ACCOUNT_RULES = 2
UNVERSIONED_RULES = 0  # parts of the first edition, which do not record how they were made

# The settings that the ledger depends on. Append only, and raise ACCOUNT_RULES when you do: parts store the values.
LEDGER_SETTINGS = ("idle_gap_ms", "startup_limit_ms", "sample_reach_ms", "sample_jitter_ms", "hang_limit_ms")

STALE = "stale"  # the digest of a part that must be rebuilt, whatever its inputs are
_DIGEST = re.compile(r"([0-9]{1,9});([0-9,]{0,200});([0-9a-f]*);([0-9a-f]*);([0-9a-f]*)")
_INPUT_STEPS = (sql.RUNS, sql.OBJECTS, sql.GANGS, sql.DIGESTS)


class Provenance(NamedTuple):
    """How a part was made; stored as its digest, fields separated by semicolons."""

    rules: int
    settings: tuple[int, ...]  # values of LEDGER_SETTINGS
    code: str  # of the code that computed `inputs`; empty: nothing recorded the inputs
    prices: str
    inputs: str

    def __str__(self) -> str:
        settings = ",".join(map(str, self.settings))
        return f"{self.rules};{settings};{self.code};{self.prices};{self.inputs}"

    @classmethod
    def parse(cls, digest: str | None) -> Self | None:
        """The provenance in a part's digest; None when the part must be rebuilt."""
        if not digest or digest == STALE:
            return None
        found = _DIGEST.fullmatch(digest)
        if found is None:
            return cls(UNVERSIONED_RULES, (), "", "", "")
        rules, settings, *hashes = found.groups()
        return cls(int(rules), tuple(int(value) for value in settings.split(",") if value), *hashes)

    def settings_over(self, current: Settings) -> Settings:
        """The settings under which the part was made. Those it does not record have their current values."""
        return current._replace(**dict(zip(LEDGER_SETTINGS, self.settings, strict=False)))  # type: ignore[arg-type]


def ledger_settings(settings: Settings) -> tuple[int, ...]:
    """The values of the settings that the ledger depends on."""
    return tuple(getattr(settings, name) for name in LEDGER_SETTINGS)


@cache
def input_code() -> str:
    """Identifies the code and the public prices behind digests of inputs. Digests of other code cannot be compared."""
    listed = repr([(known.model, known.list_usd_micro_per_hour) for known in gpu_models()])
    return short_hash([*(sql.text(step) for step in _INPUT_STEPS), listed, duckdb.__version__])[:8]


def short_hash(words: Iterable[str]) -> str:
    """32 hexadecimal digits that change with any of the words."""
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]
