"""Engine on a Ray cluster: each piece of work is a task on a node, which reads the lake itself.

A task whose worker or node dies is done again. Tasks get no secrets: each node reaches the lake by its own.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pyrometer import __version__
from pyrometer.store.engines import EngineError, Progress
from pyrometer.store.errors import StoreError

Work = TypeVar("Work")
Result = TypeVar("Result")

ANSWERS_WITHIN_S = 5.0
MAX_RETRIES = 3  # of a task whose worker died
IN_FLIGHT_PER_CPU = 2
CLIENT = "ray://"


class Ray:
    """A running Ray cluster: `auto` is the one on this machine, else HOST:PORT or ray://HOST:PORT."""

    splits = True

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError:
            raise EngineError("--engine ray needs what is not installed: pip install 'pyrometer[ray]'") from None
        self._ray = ray
        if not ray.is_initialized():
            _connect(ray, address)

    def map(
        self, function: Callable[[Any, Work], Result], work: Sequence[tuple[Any, Work]], progress: Progress
    ) -> list[Result]:
        """The results, in the order of the work; a bounded number of tasks is under way at a time.

        When one fails, the running ones finish and their results are discarded: Ray aborts this process when a task
        ends while it is canceled (ray-project/ray#54798)."""
        ray = self._ray
        shared = {id(about): ray.put(about) for about, _ in work}
        task = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_on_a_node)
        most = max(1, IN_FLIGHT_PER_CPU * int(ray.cluster_resources().get("CPU", 1)))
        results: list[Result | None] = [None] * len(work)
        waiting = list(enumerate(work))[::-1]
        places: dict[Any, int] = {}  # of running tasks
        while waiting or places:
            while waiting and len(places) < most:
                place, (about, piece) = waiting.pop()
                places[task.remote(function, __version__, shared[id(about)], piece)] = place
            progress(len(work) - len(waiting) - len(places), len(work))
            (done, *_), _ = ray.wait(list(places), num_returns=1)
            results[places.pop(done)] = self._result(done)
        progress(len(work), len(work))
        return results  # type: ignore[return-value]  # none is left out

    def _result(self, done: Any) -> Any:
        """The result of a task, or its error."""
        try:
            node, result, wrong = self._ray.get(done)
        except self._ray.exceptions.RayTaskError as error:
            cause = str(getattr(error, "cause", None) or error).strip().splitlines()[-1]
            raise EngineError(
                f"A task on the Ray cluster failed: {cause}. All its nodes need pip install 'pyrometer[ray]'."
            ) from None
        except self._ray.exceptions.RayError as error:
            message = str(error).strip().splitlines()[0]
            raise EngineError(f"A task on the Ray cluster was lost {MAX_RETRIES + 1} times: {message}") from None
        if wrong is not None:
            raise EngineError(f"Node {node} of the Ray cluster: {wrong}")
        return result


def _connect(ray: Any, address: str) -> None:
    """Connects to a cluster. If it does not answer, this fails within seconds, while Ray would try for a minute."""
    if address != "auto":
        host, port = _host_and_port(address)
        try:
            socket.create_connection((host, port), ANSWERS_WITHIN_S).close()
        except OSError as error:
            reason = error.strerror or "it does not answer"
            raise EngineError(f"No Ray cluster answers at --address {address}: {reason}.") from None
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # the future default of Ray, which warns without it
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, configure_logging=True)
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        message = (str(error).strip().splitlines() or ["it does not answer"])[0].rstrip(".")
        raise EngineError(f"No Ray cluster can be joined at --address {address}: {message}.") from None


def _host_and_port(address: str) -> tuple[str, int]:
    parsed = urlsplit(address if address.startswith(CLIENT) else f"{CLIENT}{address}")
    try:
        if parsed.hostname and parsed.port:
            return parsed.hostname, parsed.port
    except ValueError:
        pass
    raise EngineError(f"--address {address!r} is not a Ray cluster: auto, HOST:6379 or ray://HOST:10001.")


def _on_a_node(
    function: Callable[[Any, Work], Result], version: str, about: Any, piece: Work
) -> tuple[str, Result | None, str | None]:
    """Runs in a worker. Returns the node, the result, and an error of the lake on that node."""
    import ray

    util: Any = ray.util
    node = str(util.get_node_ip_address())
    if version != __version__:
        return node, None, f"it has Pyrometer {__version__}, this is {version}. Install the same on all nodes."
    try:
        return node, function(about, piece), None
    except StoreError as error:
        return node, None, str(error)
