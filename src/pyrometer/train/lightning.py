"""Lightning's own way in: an entry point (`lightning.pytorch.callbacks_factory`) that gives every Trainer a callback.

Most of Lightning is seen without it. The callback adds what only Lightning knows: where a sanity check, a validation, a
test begins and ends, to the moment and whatever it calls; and it starts the SDK where nobody could at the start of the
process, because the package lies on a path whose `.pth` files are not read. Where nobody wants to know, there is none.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any

from pyrometer.train import boot


def callbacks() -> list[Any]:
    """For `lightning.pytorch`."""
    return _callbacks("lightning.pytorch")


def callbacks_of_pytorch_lightning() -> list[Any]:
    """For the same library under its older name."""
    return _callbacks("pytorch_lightning")


def _callbacks(package: str) -> list[Any]:
    """The callback, if anybody wants to know; an error here would end a program that has nothing to do with us."""
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
        """Strategies that spawn processes pickle all callbacks: there it is one that does nothing, and needs nothing
        of ours. Validations are seen in those, too, only not to the moment."""
        return base, ()

    begins = dict.fromkeys(("on_sanity_check_start", "on_validation_start", "on_test_start", "on_predict_start"), True)
    ends = dict.fromkeys(("on_sanity_check_end", "on_validation_end", "on_test_end", "on_predict_end"), False)
    methods = {name: evaluates(yes) for name, yes in (begins | ends).items()}
    return type("Pyrometer", (base,), {**methods, "__reduce__": reduced})()
