"""Replacing functions of other packages."""

from __future__ import annotations

from types import SimpleNamespace

from pyrometer.train.hooks.patching import replace, wrap


def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


def test_wrap_passes_the_original_and_all_arguments():
    owner = SimpleNamespace(add=add)
    calls = []

    def hook(original, *args, **kwargs):
        calls.append((args, kwargs))
        return original(*args, **kwargs) * 10

    wrap(owner, "add", hook)
    assert owner.add(2, b=3) == 50
    assert calls == [((2,), {"b": 3})]
    assert (owner.add.__name__, owner.add.__doc__) == ("add", "Adds two numbers.")


def test_function_under_two_names_is_wrapped_once():
    first, second = SimpleNamespace(add=add), SimpleNamespace()
    wrap(first, "add", lambda original, *args: original(*args) * 10)
    second.add = first.add
    wrap(second, "add", lambda original, *args: original(*args) * 10)
    assert second.add(2) == 30


def test_replace_ignores_missing_and_inherited_functions():
    class Base:
        def step(self) -> int:
            return 1

    class Derived(Base):
        pass

    replace(Derived, "step", lambda original: lambda self: 2)
    replace(Derived, "missing", lambda original: lambda self: 2)
    assert Derived().step() == 1
    assert not hasattr(Derived, "missing")
