"""Files that survive a crash: what was renamed into place is whole and on disk."""

from __future__ import annotations

import os
from pathlib import Path


def fsync_path(path: Path) -> None:
    """Forces a file's bytes, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: Path, final: Path) -> None:
    """Moves a finished temporary file to its final name, durably: after this it is there whole, or not at all."""
    fsync_path(temporary)
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary.replace(final)
    fsync_path(final.parent)


def write_text(path: Path, text: str) -> None:
    """Replaces a small text file: readers see the old one or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    publish(temporary, path)
