"""The entry points of Lightning (`lightning.pytorch.callbacks_factory`), which give every Trainer a callback.

Most of Lightning is observed without it. The callback adds exact times of sanity checks, validations and tests. It also
starts the SDK where the package is on a path whose `.pth` files are not read. There is no callback if no target is
configured.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any

from pyrometer.train.run import boot


def callbacks() -> list[Any]:
    """For `lightning.pytorch`."""
    return _callbacks("lightning.pytorch")


def callbacks_of_pytorch_lightning() -> list[Any]:
    """For the same library under its older name."""
    return _callbacks("pytorch_lightning")


def _callbacks(package: str) -> list[Any]:
    """The callback, if a target is configured. An error here must not end the program."""
    with suppress(Exception):
        boot.start()
        if boot.hooks() is not None:
            return [_callback(importlib.import_module(f"{package}.callbacks").Callback)]
    return []


def _callback(base: type) -> Any:
    def evaluates(yes: bool) -> Any:
        def methods(self: Any, trainer: Any, module: Any) -> None:
            with suppress(Exception):
                rank = boot.rank()
                if rank is not None:
                    rank.recorder.evaluates(yes)

        return methods

    def reduced(self: Any) -> tuple[type, tuple[()]]:
        """Strategies that spawn processes pickle all callbacks. There the callback is one that does nothing.
        Validations are still seen, but without exact times."""
        return base, ()

    begins = dict.fromkeys(("on_sanity_check_start", "on_validation_start", "on_test_start", "on_predict_start"), True)
    ends = dict.fromkeys(("on_sanity_check_end", "on_validation_end", "on_test_end", "on_predict_end"), False)
    methods = {name: evaluates(yes) for name, yes in (begins | ends).items()}
    return type("Pyrometer", (base,), {**methods, "__reduce__": reduced})()
