"""The GPUs of this machine while a command runs: one long-lived `nvidia-smi`, read line by line.

Its values have the names of dcgm-exporter, like those of any other GPU exporter. It has no energy counter.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterable
from typing import Any

from pyrometer.train.ship.spool import Message, Spool

EVERY_MS = 5000
PUT_EVERY_S = 10.0
MAX_STARTS, RESTART_AFTER_S = 5, 30.0
_FIELDS = {
    "utilization.gpu": "DCGM_FI_DEV_GPU_UTIL",
    "memory.used": "DCGM_FI_DEV_FB_USED",
    "power.draw": "DCGM_FI_DEV_POWER_USAGE",
    "temperature.gpu": "DCGM_FI_DEV_GPU_TEMP",
    "clocks.sm": "DCGM_FI_DEV_SM_CLOCK",
    "clocks_throttle_reasons.active": "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",  # the name that every driver version knows
}
COMMAND = (
    "nvidia-smi",
    f"--query-gpu=index,uuid,name,{','.join(_FIELDS)}",
    "--format=csv,noheader,nounits",
    "-lms",
    str(EVERY_MS),
)


def parse_line(line: str, time_ms: int) -> Message | None:
    """The GPU sample in a line, without `[N/A]` and `[Not Supported]`; None if the line is not about a GPU."""
    words = [word.strip() for word in line.split(",")]
    if len(words) != 3 + len(_FIELDS) or not words[0].isdecimal():
        return None
    fields: dict[str, Any] = {
        "time_ms": time_ms,
        "gpu_index": int(words[0]),
        "gpu_uuid": words[1],
        "gpu_model": words[2],
    }
    for name, word in zip(_FIELDS.values(), words[3:], strict=True):
        with contextlib.suppress(ValueError):
            fields[name] = float(int(word, 16)) if word.startswith("0x") else float(word)
    return "gpu", fields


class GpuWatch:
    """Reads `nvidia-smi` in a thread. Does nothing where there is none."""

    def __init__(self, spool: Spool, command: Iterable[str] = COMMAND) -> None:
        self._spool, self._command = spool, tuple(command)
        self._identity = {"host": socket.gethostname()}
        self._ended = threading.Event()
        self._child: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="pyrometer-gpus", daemon=True)

    def start(self) -> None:
        """Starts to read."""
        self._thread.start()

    def close(self) -> None:
        """Ends the child process and writes its last samples."""
        self._ended.set()
        child = self._child
        if child is not None:
            with contextlib.suppress(OSError):
                child.terminate()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _run(self) -> None:
        for _ in range(MAX_STARTS):
            try:
                # A session of its own, because Ctrl-C is for the training. If this process is killed, the child ends
                # with a broken pipe.
                self._child = subprocess.Popen(  # noqa: S603 - found on the user's own PATH
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
            except OSError:
                return
            with self._child as child:
                self._read(child)
            if self._ended.wait(RESTART_AFTER_S):
                return

    def _read(self, child: subprocess.Popen[str]) -> None:
        messages: list[Message] = []
        last_put_s = time.monotonic()
        for line in child.stdout or ():
            found = parse_line(line[:1000], time.time_ns() // 1_000_000)
            if found is not None:
                messages.append(found)
            if time.monotonic() - last_put_s >= PUT_EVERY_S:
                last_put_s = time.monotonic()
                self._spool.put(self._identity, messages)
                messages = []
        self._spool.put(self._identity, messages)
