"""What `pyrometer run` puts before every other `sitecustomize`: starts the SDK, and hands on to the next one.

It runs in every Python of the command. Nothing that goes wrong here may be seen there.
"""


def _start() -> None:
    """Starts the SDK: that of this interpreter's own environment, else the one that `pyrometer run` came from."""
    import importlib.util
    import os
    import sys

    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if importlib.util.find_spec("pyrometer") is None:
        # by its own folder and not by sys.path, which would show the program packages of another environment
        spec = importlib.util.spec_from_file_location(
            "pyrometer", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        if spec is None or spec.loader is None:
            return
        module = sys.modules["pyrometer"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    importlib.import_module("pyrometer.train.boot").start()


def _go_on() -> None:
    """Runs the `sitecustomize` that would have been, if there is one. Its errors are its own, and `site` shows them."""
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
    pass  # a training job goes on without telemetry
_go_on()
