"""Replaces functions of other packages with wrapped ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Original = Callable[..., Any]


def wrap(owner: Any, name: str, hook: Callable[..., Any]) -> None:
    """Calls `hook` instead of the function, with the original function as its first argument."""

    def hooked(original: Original) -> Original:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return hook(original, *args, **kwargs)

        return wrapped

    replace(owner, name, hooked)


def replace(owner: Any, name: str, hooked: Callable[[Original], Original]) -> None:
    """Replaces a function with the one that `hooked` makes from it. Inherited functions are left alone."""
    if name not in vars(owner):
        return
    original = vars(owner)[name]
    original = getattr(original, "__pyrometer__", original)  # one function under two names is wrapped once
    wrapped = functools.wraps(original)(hooked(original))
    wrapped.__pyrometer__ = original  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)
