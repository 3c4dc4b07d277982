"""Part stores: files that never change once written, in a local folder or in an S3-compatible bucket.

Backups and lakes are both a part store with a list of the files that count. A file appears under its name only when it
is complete.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict
from urllib.parse import urlsplit

from pyrometer.store import files

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

LOCAL_CHUNK_BYTES = 1 << 20
BUCKET_CHUNK_BYTES = 8 << 20
CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S, MAX_ATTEMPTS = 5.0, 60.0, 3


class FileEntry(TypedDict):
    """The size and SHA-256 of a file, as lists of files record them."""

    bytes: int
    sha256: str


class PartStore(ABC):
    """Files by relative path. Writing replaces a file as a whole; a failed write leaves what was there before."""

    @abstractmethod
    def folders(self) -> list[str]:
        """The names of the folders at the top."""

    @abstractmethod
    def sizes(self, folder: str) -> dict[str, int]:
        """The bytes of every file below a folder, by path relative to that folder."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The content of a small file. Raises FileNotFoundError if it does not exist."""

    @abstractmethod
    def put(self, path: str, source: Path | bytes) -> None:
        """Writes a file."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Removes a file, if it exists."""


class LocalPartStore(PartStore):
    """A part store in a local folder. Paths that lead out of the folder are refused."""

    def __init__(self, folder: Path, *, folder_mode: int = 0o777) -> None:
        self.folder = folder
        self._folder_mode = folder_mode  # of the folders that it creates

    def folders(self) -> list[str]:
        """The names of the folders at the top."""
        return sorted(path.name for path in self.folder.iterdir() if path.is_dir())

    def sizes(self, folder: str) -> dict[str, int]:
        """The bytes of every file below a folder, by path relative to that folder."""
        root = self.folder / folder
        paths = [path for path in root.rglob("*") if path.is_file()]
        return {path.relative_to(root).as_posix(): path.stat().st_size for path in paths}

    def path(self, path: str) -> Path:
        """The absolute path of a file. Another writer of the folder may have put a link there, so it is checked."""
        return files.inside(self.folder, path)

    def read(self, path: str) -> bytes:
        """The content of a small file."""
        return (self.folder / path).read_bytes()

    def chunks(self, path: str) -> Iterator[bytes]:
        """The content of a file, chunk by chunk."""
        return chunks_of(self.path(path))

    def put(self, path: str, source: Path | bytes) -> None:
        """Writes a file. It appears when it is complete and on disk."""
        final, temporary = self._new_file(path)
        if isinstance(source, bytes):
            temporary.write_bytes(source)
        else:
            shutil.copyfile(source, temporary)
        files.publish(temporary, final)

    def write(
        self, path: str, chunks: Iterable[bytes], check: Callable[[FileEntry], None] = lambda entry: None
    ) -> FileEntry:
        """Writes a file from chunks. An error of `check`, which gets its size and digest, keeps it from appearing."""
        final, temporary = self._new_file(path)
        digest, size = hashlib.sha256(), 0
        with temporary.open("wb") as stream:
            for chunk in chunks:
                digest.update(chunk)
                size += stream.write(chunk)
        entry = FileEntry(bytes=size, sha256=digest.hexdigest())
        try:
            check(entry)
        except BaseException:
            temporary.unlink()
            raise
        files.publish(temporary, final)
        return entry

    def _new_file(self, path: str) -> tuple[Path, Path]:
        """The final and the temporary path of a file that is about to be written."""
        final = self.path(path)
        final.parent.mkdir(parents=True, exist_ok=True, mode=self._folder_mode)
        temporary = final.with_name(f"{final.name}.tmp")
        temporary.unlink(missing_ok=True)  # it could be a link
        return final, temporary

    def remove(self, path: str) -> None:
        """Removes a file, if it exists."""
        self.path(path).unlink(missing_ok=True)


class BucketPartStore(PartStore):
    """A part store below a prefix of a bucket. Credentials come from the usual variables and files of AWS."""

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        self._root = root  # BUCKET/PREFIX
        self._options = options  # `endpoint`, `region`

    def folders(self) -> list[str]:
        """The names of the folders at the top."""
        from pyarrow.fs import FileSelector, FileType

        found = self._bucket.get_file_info(FileSelector(self._root))
        return sorted(one.base_name for one in found if one.type == FileType.Directory)

    def sizes(self, folder: str) -> dict[str, int]:
        """The bytes of every file below a folder, by path relative to that folder."""
        from pyarrow.fs import FileSelector, FileType

        root_key = f"{self._root}/{folder}"
        found = self._bucket.get_file_info(FileSelector(root_key, recursive=True, allow_not_found=True))
        return {one.path.removeprefix(f"{root_key}/"): one.size for one in found if one.type == FileType.File}

    def read(self, path: str) -> bytes:
        """The content of a small file."""
        with self._bucket.open_input_stream(f"{self._root}/{path}") as stream:
            content: bytes = stream.read()
            return content

    def put(self, path: str, source: Path | bytes) -> None:
        """Writes a file. It appears when it was sent completely."""
        with self._bucket.open_output_stream(f"{self._root}/{path}") as stream:
            if isinstance(source, bytes):
                stream.write(source)
                return
            for chunk in chunks_of(source, BUCKET_CHUNK_BYTES):
                stream.write(chunk)

    def download(self, path: str, into: Path) -> None:
        """Copies a file to the local disk, where it appears when it is complete. Its folder exists."""
        temporary = into.with_name(f"{into.name}.{os.getpid()}.tmp")
        try:
            with self._bucket.open_input_stream(f"{self._root}/{path}") as stream, temporary.open("wb") as to:
                while chunk := stream.read(BUCKET_CHUNK_BYTES):
                    to.write(chunk)
            temporary.replace(into)
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self, path: str) -> None:
        """Removes a file, if it exists."""
        try:
            self._bucket.delete_file(f"{self._root}/{path}")
        except FileNotFoundError:
            return

    @cached_property
    def _bucket(self) -> S3FileSystem:
        from pyarrow import fs

        endpoint = self._options.get("endpoint") or _first_set("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        region = self._options.get("region") or _first_set("AWS_REGION", "AWS_DEFAULT_REGION")
        if endpoint is None and region is None:
            region = fs.resolve_s3_region(self._root.partition("/")[0])
        parsed = urlsplit(endpoint if endpoint is None or "://" in endpoint else f"https://{endpoint}")
        return fs.S3FileSystem(
            region=region or "us-east-1",
            connect_timeout=CONNECT_TIMEOUT_S,
            request_timeout=REQUEST_TIMEOUT_S,
            allow_delayed_open=True,  # sends a small file in one request
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=MAX_ATTEMPTS),
            **({"endpoint_override": parsed.netloc, "scheme": parsed.scheme} if endpoint else {}),
        )


def chunks_of(path: Path, chunk_bytes: int = LOCAL_CHUNK_BYTES) -> Iterator[bytes]:
    """The content of a file, chunk by chunk."""
    with path.open("rb") as stream:
        while chunk := stream.read(chunk_bytes):
            yield chunk


def entry_of(path: Path, max_bytes: int | None = None) -> FileEntry | None:
    """The size and digest of a file; None if there is no such file. StoreReader stops once it exceeds `max_bytes`."""
    digest, size = hashlib.sha256(), 0
    try:
        if not path.is_file():  # reading from a pipe would never end
            return None
        for chunk in chunks_of(path):
            digest.update(chunk)
            size += len(chunk)
            if max_bytes is not None and size > max_bytes:
                break
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FileEntry(bytes=size, sha256=digest.hexdigest())


def _first_set(*variables: str) -> str | None:
    return next((os.environ[name] for name in variables if os.environ.get(name)), None)
