"""How much the tests try: `make test` is done in minutes, `make test-all` looks at more examples of the same laws."""

from __future__ import annotations

import os

EFFORT = int(os.environ.get("PYROMETER_EXAMPLES", "1"))
OF_TEST_ALL = 2  # as the Makefile has it; beyond, examples are others every time

THOROUGH = EFFORT > 1
STEADY = EFFORT <= OF_TEST_ALL
