"""Watches for XID errors through NVML, with a thread that waits in the driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

import pynvml

from pyrometer.agent.nvml import Gpu, address

WAIT_MS = 1000
PAUSE_S = 5.0  # after an error other than a timeout, because a lost GPU makes every wait fail immediately


class XidWatch:
    """The newest XID of every GPU that can report them, by UUID; 0 before the first one."""

    def __init__(self, gpus: Iterable[Gpu], on_xid: Callable[[str, int], None] | None = None) -> None:
        self.last: dict[str, int] = {}
        self._on_xid = on_xid
        self._uuids: dict[int, str] = {}
        self._ended = threading.Event()
        self._events = pynvml.nvmlEventSetCreate()
        for gpu in gpus:
            self._register(gpu)
        self._thread = threading.Thread(target=self._run, name="xids", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread after its current wait."""
        self._ended.set()
        self._thread.join()
        pynvml.nvmlEventSetFree(self._events)

    def _register(self, gpu: Gpu) -> None:
        if gpu.handle is None:
            return
        try:
            pynvml.nvmlDeviceRegisterEvents(gpu.handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
        except pynvml.NVMLError:  # it reports none, or is lost
            return
        self._uuids[address(gpu.handle)] = gpu.device.uuid
        self.last[gpu.device.uuid] = 0

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, WAIT_MS)
            except pynvml.NVMLError_Timeout:
                continue
            except pynvml.NVMLError:
                self._ended.wait(PAUSE_S)
                continue
            uuid = self._uuids.get(address(event.device))
            if uuid is not None and event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                self._note(uuid, event.eventData)

    def _note(self, uuid: str, xid: int) -> None:
        self.last[uuid] = xid
        logging.getLogger("pyrometer").warning("%s reported XID %d", uuid, xid)
        if self._on_xid:
            self._on_xid(uuid, xid)
