"""Finding the model of an optimizer."""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch", reason="make setup installs torch")

from pyrometer.train.hooks.model_roots import Roots  # noqa: E402


@pytest.fixture
def roots():
    def watched(original):
        def call(module, *args, **kwargs):
            made.called.add(id(module))
            return original(module, *args, **kwargs)

        return call

    made = Roots(torch, watched)
    yield made
    made.forget()


def model_class() -> type:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x):
            return self.layer(x)

    return Net


def test_find_returns_the_outermost_module_of_the_parameters(roots):
    model, other = model_class()(), torch.nn.Linear(2, 1)
    roots.find(1, model.parameters())
    assert list(roots.modules.values()) == [model]
    assert other not in roots.modules.values()
    model(torch.ones(1, 2))
    assert roots.called == {id(model)}


def test_settle_replaces_modules_that_are_never_called(roots):
    wrapper = model_class()()
    roots.find(1, wrapper.parameters())
    wrapper.layer(torch.ones(1, 2))  # only a part is called, as in Lightning
    roots.settle(1)
    assert wrapper.layer in roots.modules.values()
    assert wrapper not in roots.modules.values()


def test_of_type_finds_modules_by_class_name(roots):
    model = model_class()()
    roots.find(1, model.parameters())
    assert roots.of_type("Linear") == [model.layer]
    assert roots.of_type("Conv2d") == []


def test_forget_restores_the_class(roots):
    cls = model_class()
    model = cls()
    roots.find(1, model.parameters())
    assert "__call__" in vars(cls)
    roots.forget()
    assert "__call__" not in vars(cls)
    assert roots.modules == {}


def test_freed_model_is_forgotten(roots):
    cls = model_class()
    model = cls()
    roots.find(1, model.parameters())
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert roots.modules == {}
    assert "__call__" not in vars(cls)
