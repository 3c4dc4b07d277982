"""Of the examples of a file that build nights `make test` looks at the first, and `make test-all` at all."""

from __future__ import annotations

from collections import Counter

import pytest

from traced import Trained

VARIANTS = 1  # of one example
EXAMPLES = 7  # of one file: what a cause is comes first, then where its borders are
FOLDER = "tmp_path"  # in which a test builds a night of its own; those of a module's are cheap


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A night takes a third of a second; that the first is no accident is what the others show."""
    seen: Counter[str] = Counter()
    for item in items:
        test = item.nodeid.partition("[")[0]
        file = test.partition("::")[0]
        if "/explain/" in file and FOLDER in getattr(item, "fixturenames", ()):
            seen[test] += 1
            seen[file] += seen[test] == 1
            if seen[test] > VARIANTS or seen[file] > EXAMPLES:
                item.add_marker(pytest.mark.heavy)


@pytest.fixture(scope="module")
def trained():
    """A run as the SDK sends it."""
    return Trained()


@pytest.fixture(scope="module")
def store(trained, tmp_path_factory):
    """What is kept of that run."""
    with trained.store(tmp_path_factory.mktemp("trained") / "data") as store:
        yield store
