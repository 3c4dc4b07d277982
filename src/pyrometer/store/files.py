"""Writing files that survive a crash: a renamed file is complete and on disk."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pyrometer.store.errors import StoreError


def fsync_path(path: Path) -> None:
    """Syncs a file's bytes, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def inside(folder: Path, relative: str) -> Path:
    """A path below a folder. A path that leaves the folder, by its name or through a link, is refused."""
    path = folder / relative
    if not path.resolve().is_relative_to(folder.resolve()):
        raise StoreError(f"{path} leads out of {folder}. Nothing there was read or changed.")
    return path


def sha256(path: Path) -> str:
    """The digest of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def publish(temporary: Path, final: Path) -> None:
    """Moves a complete temporary file to its final name, durably."""
    fsync_path(temporary)
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary.replace(final)
    fsync_path(final.parent)


def write_text(path: Path, text: str, *, secret: bool = False) -> None:
    """Replaces a small text file. Readers see the old or the new text. Only its owner can read a secret file."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)  # an old one could have other permissions
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o666)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        publish(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
