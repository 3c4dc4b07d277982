"""The exit code of this process, stored where it outlives the process, and the exception that ended it.

Python does not report the code it exits with: `raise SystemExit(3)` leaves no trace by the time `atexit` functions run.
The C library does: it passes the code to the functions registered with `on_exit`, after Python has finalized. The
function registered here is its own `putw`, which writes the code into the ring, where the watcher reads it. `os._exit`
skips these functions, so `boot` wraps it. A process that dies without a code in its ring was ended by a signal.
"""

from __future__ import annotations

import ctypes
import os
import sys
import traceback

from pyrometer.train.steps.ring import EXIT, EXIT_GUESSED, HAS_EXIT, NO_EXIT_YET, Ring

MAX_HEADLINE = 1_000  # characters
MAX_TEXT = 16_384
_SLOT_BYTES = 8
_UNBUFFERED, _FROM_START = 2, 0  # _IONBF, SEEK_SET

_ring: Ring | None = None
_stream: int | None = None  # a C `FILE *` on the ring's slot


def record(ring: Ring) -> None:
    """Stores the exit code of this process in its ring, where the C library is glibc."""
    global _ring, _stream
    ring.view[EXIT] = EXIT_GUESSED
    if os.getpid() == 1 or sys.byteorder != "little" or ring.memory is None:
        return  # the container ends with process 1, and the watcher with it
    try:
        libc = _libc()
        address = ctypes.addressof(ctypes.c_char.from_buffer(ring.memory)) + _SLOT_BYTES * EXIT
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(ring.memory))  # stays mapped after Python has finalized
        ring.view[EXIT] = NO_EXIT_YET
        stream = libc.fmemopen(address, _SLOT_BYTES, b"r+")
        if not stream:
            raise OSError("fmemopen failed")
        libc.setvbuf(stream, None, _UNBUFFERED, 0)
        if libc.on_exit(ctypes.cast(libc.putw, ctypes.c_void_p), stream):
            raise OSError("on_exit failed")
    except (AttributeError, OSError):
        ring.view[EXIT] = EXIT_GUESSED
        return
    if _stream is None:
        os.register_at_fork(after_in_child=_forget)
    _ring, _stream = ring, stream


def exits_now(status: object) -> None:
    """Stores the exit code of `os._exit`, which is about to end the process."""
    if _ring is not None and _ring.stores_exit() and isinstance(status, int):
        _ring.view[EXIT] = HAS_EXIT | (status & 0xFF)


def uncaught() -> BaseException | None:
    """The exception that ended the main thread, whatever `sys.excepthook` of the program does with it."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if not isinstance(error, BaseException):
        return None
    trace = error.__traceback__
    # An exception that a debugger or a C extension printed did not reach the outermost frame.
    return error if trace is None or trace.tb_frame.f_back is None else None


def describe(error: BaseException) -> str:
    """An exception as text: type and message in one line, then the traceback."""
    lines = traceback.format_exception_only(error)
    # A SyntaxError begins with indented lines that show the source; notes follow the line with the type.
    headline = " ".join(next((line for line in lines if not line.startswith(" ")), lines[-1]).split())
    text = "".join(traceback.format_exception(error))
    if len(headline) > MAX_HEADLINE:
        headline = f"{headline[: MAX_HEADLINE - 1]}…"
    if len(text) > MAX_TEXT:
        half = MAX_TEXT // 2
        text = f"{text[:half]}\n…\n{text[-half:]}"
    return f"{headline}\n\n{text}"


def _forget() -> None:
    """In a forked child, whose exit code must not be written into the ring of its parent."""
    global _ring
    if _stream is not None:
        _libc().fseek(_stream, _SLOT_BYTES, _FROM_START)  # the end of the slot: nothing more fits
    _ring = None


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.fmemopen.restype = ctypes.c_void_p
    libc.fmemopen.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.setvbuf.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t]
    libc.fseek.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_int]
    libc.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return libc
