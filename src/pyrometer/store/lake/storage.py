"""The storage of a lake: a shared folder or a bucket, addressed by a URL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pyrometer.store.errors import StoreError
from pyrometer.store.part_store import BucketPartStore, LocalPartStore, PartStore

URL_OPTIONS = ("endpoint", "region")


class LakeError(StoreError):
    """A lake that cannot be used. The text names it and the fix, and contains no secret."""


class LakeStorage:
    """A part store that is a folder or `s3://BUCKET/PREFIX`. Its errors are one sentence about the lake."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.folder: Path | None = None  # None: a bucket
        parsed = urlsplit(url)
        if "@" in parsed.netloc:
            raise LakeError(
                "The address of a lake has credentials in it: leave them out. They come from AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, a profile, or the machine's role."
            )
        if parsed.scheme == "s3":
            if not parsed.netloc:
                raise LakeError(f"The lake {url!r} names no bucket. Use s3://BUCKET/PREFIX.")
            options = dict(parse_qsl(parsed.query))
            unknown = sorted(set(options) - set(URL_OPTIONS))
            if unknown:
                known = ", ".join(URL_OPTIONS)
                raise LakeError(f"The address of a lake has {unknown[0]!r} in it, which is not known: {known}.")
            self._bucket = BucketPartStore(f"{parsed.netloc}{parsed.path}".rstrip("/"), options)
            self._files: PartStore = self._bucket
        elif parsed.scheme in ("", "file") or len(parsed.scheme) == 1:
            self.folder = Path(parsed.path if parsed.scheme == "file" else url).absolute()
            self.url = str(self.folder)
            self._files = LocalPartStore(self.folder)
        else:
            raise LakeError(f"The lake {url!r} is not supported. Use a folder, or s3://BUCKET/PREFIX.")

    def __reduce__(self) -> tuple[Any, ...]:
        return (LakeStorage, (self.url,))

    def folders(self) -> list[str]:
        """The names of the folders at the top: one per cluster."""
        with self._lake_errors("read"):
            if self.folder is not None and not self.folder.is_dir():
                raise LakeError(f"There is no lake in {self.folder}: the folder does not exist.")
            return self._files.folders()

    def sizes(self, folder: str) -> dict[str, int]:
        """The bytes of every file below a folder, by path relative to that folder."""
        with self._lake_errors("read"):
            return self._files.sizes(folder)

    def read(self, path: str) -> bytes | None:
        """The content of a small file; None if it does not exist."""
        with self._lake_errors("read"):
            try:
                return self._files.read(path)
            except FileNotFoundError:
                return None

    def download(self, path: str, into: Path) -> None:
        """Copies a file of a bucket to the local disk, where it appears when it is complete."""
        into.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._lake_errors("read"):
                self._bucket.download(path, into)
        except FileNotFoundError:
            raise LakeError(
                f"{self.url} no longer has {path}: the manifest that was read is too old. Try again."
            ) from None

    def put(self, path: str, source: Path | bytes) -> None:
        """Writes a file. It appears when it is complete."""
        with self._lake_errors("written"):
            self._files.put(path, source)

    def remove(self, path: str) -> None:
        """Removes a file, if it exists."""
        with self._lake_errors("written"):
            self._files.remove(path)

    @contextmanager
    def _lake_errors(self, verb: str) -> Iterator[None]:
        """Turns errors of the operating system and of the object store into one sentence."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise LakeError(f"The lake {self.url} cannot be {verb} now: {_reason(error)}.") from None


def _reason(error: OSError) -> str:
    """The reason in a few words. What an object store reports may contain keys and requests, so it is not quoted."""
    if error.strerror and error.errno:
        return error.strerror
    found = re.search(r"AWS Error ([A-Z_]+)", str(error))
    return found[1].lower().replace("_", " ") if found else "the object store does not answer"
