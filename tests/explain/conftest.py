"""Of a parametrized example that builds nights, `make test` looks at the first variants and `make test-all` at all."""

from __future__ import annotations

import pytest

from traced import Trained

VARIANTS = 1
FOLDER = "tmp_path"  # in which a test builds a night of its own; those of a module's are cheap


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A night takes a third of a second; that the first is no accident is what the others show."""
    seen: dict[str, int] = {}
    for item in items:
        test, _, variant = item.nodeid.partition("[")
        if variant and "/explain/" in test and FOLDER in getattr(item, "fixturenames", ()):
            seen[test] = seen.get(test, 0) + 1
            if seen[test] > VARIANTS:
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
