"""The `sitecustomize` of `pyrometer run`, which comes before all others: starts the SDK and runs the next one.

It runs in every Python process of the command, so its errors must not be visible there.
"""


def _start() -> None:
    """Starts the SDK of this interpreter's environment, or else the SDK that `pyrometer run` belongs to."""
    import importlib.util
    import os
    import sys

    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if importlib.util.find_spec("pyrometer") is None:
        # from its own folder, because an entry in sys.path would expose packages of another environment
        spec = importlib.util.spec_from_file_location(
            "pyrometer", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        if spec is None or spec.loader is None:
            return
        module = sys.modules["pyrometer"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    importlib.import_module("pyrometer.train.run.boot").start()


def _run_next() -> None:
    """Runs the `sitecustomize` that this one replaces, if there is one. `site` shows its errors as usual."""
    import os
    import sys
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    found = PathFinder.find_spec("sitecustomize", sys.path)
    if found is not None and found.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(found)
        found.loader.exec_module(module)


try:
    _start()
except Exception:
    pass  # the training job continues without telemetry
_run_next()
