"""Whatever bytes come: kept inputs once more, and accidents to them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.effort import EFFORT
from tests.support.fuzz_targets import CORPUS, TARGETS
from tests.support.mangle import mangled

EXAMPLES = settings(max_examples=60 * EFFORT, suppress_health_check=list(HealthCheck))
KEPT = {name: [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))] for name in TARGETS}
MAX_KEPT_BYTES = 300_000


@pytest.mark.parametrize("target", TARGETS)
def test_kept_inputs_pass_their_targets(target):
    assert KEPT[target]
    for content in KEPT[target]:
        TARGETS[target](content)


@pytest.mark.parametrize("target", TARGETS)
def test_mangled_inputs_pass_their_targets(target):
    @EXAMPLES
    @given(mangled(KEPT[target]))
    def throw(content):
        TARGETS[target](content)

    throw()


def test_kept_inputs_are_small():
    assert sum(len(content) for kept in KEPT.values() for content in kept) < MAX_KEPT_BYTES
