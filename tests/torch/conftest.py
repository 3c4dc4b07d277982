"""Tests with real training processes. PyTorch comes with `make setup`; frameworks and trackers with `make test-all`.

This folder must not have an `__init__.py`: `import torch` would find it.
"""

from __future__ import annotations

import importlib.util

import pytest

# Warnings are errors. Excepted is what libraries say about themselves and each other, and about machines without GPUs.
_LIBRARIES = "(torch|transformers|accelerate|datasets|lightning|pytorch_lightning|mlflow|wandb|tensorboard)"
EXCEPTED = (
    f"ignore::DeprecationWarning:{_LIBRARIES}",
    f"ignore::FutureWarning:{_LIBRARIES}",
    "ignore:.*pin_memory.*no accelerator:UserWarning",
    "ignore:Synchronization debug mode is a prototype:UserWarning",
    "ignore:.*does not have many workers:UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in this folder run next to libraries that warn about themselves."""
    for item in items:
        if "/torch/" in item.nodeid:
            for warning in EXCEPTED:
                item.add_marker(pytest.mark.filterwarnings(warning), append=False)


def missing(library: str) -> str | None:
    """Why a test with a library cannot run; None when it can."""
    if importlib.util.find_spec(library) is None:
        how = "`make setup` installs it" if library == "torch" else "`make test-all` installs it (extra `heavy`)"
        return f"needs {library}: {how}"
    return None


@pytest.fixture(autouse=True)
def _with(request: pytest.FixtureRequest) -> None:
    """Every test here needs PyTorch; `@pytest.mark.needs("transformers")` names what it needs in addition."""
    marks = request.node.iter_markers("needs")
    for library in ("torch", *(name for mark in marks for name in mark.args)):
        if reason := missing(library):
            pytest.skip(reason)
