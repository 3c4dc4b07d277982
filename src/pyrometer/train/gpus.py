"""The host's GPUs while a command runs, as `nvidia-smi` sees them: one long-lived child, read line by line.

Its figures go under dcgm-exporter's names, like those of any other GPU exporter. It has no counter of energy.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterable
from typing import Any

from pyrometer.train.spool import Message, Spool

EVERY_MS = 5000
PUT_EVERY_S = 10.0
MAX_STARTS, RESTART_AFTER_S = 5, 30.0
_FIELDS = {
    "utilization.gpu": "DCGM_FI_DEV_GPU_UTIL",
    "memory.used": "DCGM_FI_DEV_FB_USED",
    "power.draw": "DCGM_FI_DEV_POWER_USAGE",
    "temperature.gpu": "DCGM_FI_DEV_GPU_TEMP",
    "clocks.sm": "DCGM_FI_DEV_SM_CLOCK",
    "clocks_throttle_reasons.active": "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",  # the name that every driver knows
}
COMMAND = (
    "nvidia-smi", f"--query-gpu=index,uuid,name,{','.join(_FIELDS)}", "--format=csv,noheader,nounits",
    "-lms", str(EVERY_MS),
)  # fmt: skip


def parse_line(line: str, time_ms: int) -> Message | None:
    """What a line says of a GPU. `[N/A]`, `[Not Supported]` and the like are absent; None when it is about none."""
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
    """Reads `nvidia-smi` in a thread. Where there is none, it does nothing."""

    def __init__(self, spool: Spool, command: Iterable[str] = COMMAND) -> None:
        self._spool, self._command = spool, tuple(command)
        self._identity = {"host": socket.gethostname()}
        self._ended = threading.Event()
        self._child: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="pyrometer-gpus", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    def close(self) -> None:
        """Ends the child, and hands on what it said."""
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
                # a session of its own: Ctrl-C is for the training; when we are killed, it dies of its broken pipe
                self._child = subprocess.Popen(  # noqa: S603 - found on the user's own PATH
                    self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                    text=True, errors="replace", start_new_session=True,
                )  # fmt: skip
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
