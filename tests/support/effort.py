"""How many examples the tests try: `make test` takes minutes, `make test-all` tries more examples."""

from __future__ import annotations

import os

EFFORT = int(os.environ.get("PYROMETER_EXAMPLES", "1"))
TEST_ALL_EFFORT = 2  # the value in the Makefile; above it, every run draws other examples

THOROUGH = EFFORT > 1
DETERMINISTIC = EFFORT <= TEST_ALL_EFFORT
