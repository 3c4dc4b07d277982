"""Where a lake lies: a folder that others see too, or a bucket. Files are put there whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from pyrometer.store import files
from pyrometer.store.errors import StoreError

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

KNOWN_IN_A_QUERY = ("endpoint", "region")
CONNECT_S, REQUEST_S, ATTEMPTS = 5.0, 60.0, 3
PIECE = 8 << 20


class LakeError(StoreError):
    """A lake that cannot be used as asked; the text names it and the way out, and no secret."""


class Place:
    """A folder or `s3://BUCKET/PREFIX`. Credentials come from the usual variables and files of AWS, never from here."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.folder: Path | None = None  # None: a bucket
        self._root = ""
        parsed = urlsplit(url)
        if "@" in parsed.netloc:
            raise LakeError(
                "The address of a lake has credentials in it: leave them out. They come from AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, a profile, or the machine's role."
            )
        if parsed.scheme == "s3":
            if not parsed.netloc:
                raise LakeError(f"The lake {url!r} names no bucket: s3://BUCKET/PREFIX.")
            self._root = f"{parsed.netloc}{parsed.path}".rstrip("/")
            self._query = dict(parse_qsl(parsed.query))
            unknown = sorted(set(self._query) - set(KNOWN_IN_A_QUERY))
            if unknown:
                known = ", ".join(KNOWN_IN_A_QUERY)
                raise LakeError(f"The address of a lake has {unknown[0]!r} in it, which is not known: {known}.")
        elif parsed.scheme in ("", "file") or len(parsed.scheme) == 1:
            self.folder = Path(parsed.path if parsed.scheme == "file" else url).absolute()
            self.url = str(self.folder)
        else:
            raise LakeError(f"The lake {url!r} is none that can be read: a folder, or s3://BUCKET/PREFIX.")

    def __reduce__(self) -> tuple[Any, ...]:
        return (Place, (self.url,))

    # -- what is there ------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """What lies directly in it, and has something in it."""
        with self._trouble("read"):
            if self.folder is not None:
                if not self.folder.is_dir():
                    raise LakeError(f"There is no lake in {self.folder}: no such folder.")
                return sorted(path.name for path in self.folder.iterdir() if path.is_dir())
            from pyarrow.fs import FileSelector, FileType

            found = self._bucket.get_file_info(FileSelector(self._root))
            return sorted(one.base_name for one in found if one.type == FileType.Directory)

    def sizes(self, under: str) -> dict[str, int]:
        """The bytes of every file below a name, by path from there."""
        with self._trouble("read"):
            if self.folder is not None:
                root = self.folder / under
                paths = [path for path in root.rglob("*") if path.is_file()]
                return {path.relative_to(root).as_posix(): path.stat().st_size for path in paths}
            from pyarrow.fs import FileSelector, FileType

            root_key = f"{self._root}/{under}"
            found = self._bucket.get_file_info(FileSelector(root_key, recursive=True, allow_not_found=True))
            return {one.path.removeprefix(f"{root_key}/"): one.size for one in found if one.type == FileType.File}

    def read(self, path: str) -> bytes | None:
        """A small file; None when it is not there."""
        with self._trouble("read"):
            try:
                if self.folder is not None:
                    return (self.folder / path).read_bytes()
                with self._bucket.open_input_stream(f"{self._root}/{path}") as stream:
                    content: bytes = stream.read()
                    return content
            except FileNotFoundError:
                return None

    def fetch(self, path: str, into: Path) -> None:
        """Copies a file here: afterwards it is there whole, or not at all."""
        into.parent.mkdir(parents=True, exist_ok=True)
        temporary = into.with_name(f"{into.name}.{os.getpid()}.tmp")
        try:
            with (
                self._trouble("read"),
                self._bucket.open_input_stream(f"{self._root}/{path}") as stream,
                temporary.open("wb") as to,
            ):
                while piece := stream.read(PIECE):
                    to.write(piece)
            temporary.replace(into)
        except FileNotFoundError:
            raise LakeError(
                f"{self.url} has no {path} any more: what was read of it is older than what it keeps. Ask again."
            ) from None
        finally:
            temporary.unlink(missing_ok=True)

    # -- what is put there --------------------------------------------------------------------------------------------

    def put(self, path: str, source: Path | bytes) -> None:
        """Writes a file. In a folder it appears when it is whole and on disk; in a bucket, when it was sent whole."""
        with self._trouble("written"):
            if self.folder is not None:
                final = files.inside(self.folder, path)  # who else writes to the folder may have put a link there
                final.parent.mkdir(parents=True, exist_ok=True)
                temporary = final.with_name(f"{final.name}.tmp")
                temporary.unlink(missing_ok=True)
                if isinstance(source, bytes):
                    temporary.write_bytes(source)
                else:
                    shutil.copyfile(source, temporary)
                files.publish(temporary, final)
                return
            with self._bucket.open_output_stream(f"{self._root}/{path}") as stream:
                if isinstance(source, bytes):
                    stream.write(source)
                    return
                with source.open("rb") as content:
                    while piece := content.read(PIECE):
                        stream.write(piece)

    def remove(self, path: str) -> None:
        """Removes a file; that it is gone already is well."""
        with self._trouble("written"):
            if self.folder is not None:
                files.inside(self.folder, path).unlink(missing_ok=True)
                return
            try:
                self._bucket.delete_file(f"{self._root}/{path}")
            except FileNotFoundError:
                return

    @cached_property
    def _bucket(self) -> S3FileSystem:
        from pyarrow import fs

        endpoint = self._query.get("endpoint") or _first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        region = self._query.get("region") or _first("AWS_REGION", "AWS_DEFAULT_REGION")
        if endpoint is None and region is None:
            region = fs.resolve_s3_region(self._root.partition("/")[0])
        parsed = urlsplit(endpoint if endpoint is None or "://" in endpoint else f"https://{endpoint}")
        return fs.S3FileSystem(
            region=region or "us-east-1", connect_timeout=CONNECT_S, request_timeout=REQUEST_S,
            allow_delayed_open=True,  # small files in one request
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
            **({"endpoint_override": parsed.netloc, "scheme": parsed.scheme} if endpoint else {}),
        )  # fmt: skip

    @contextmanager
    def _trouble(self, doing: str) -> Iterator[None]:
        """What goes wrong, as one sentence."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise LakeError(f"The lake {self.url} cannot be {doing} now: {_reason(error)}.") from None


def _first(*variables: str) -> str | None:
    return next((os.environ[name] for name in variables if os.environ.get(name)), None)


def _reason(error: OSError) -> str:
    """Why, in a few words: what an object store says may name keys and requests, and does not belong in a log."""
    if error.strerror and error.errno:
        return error.strerror
    found = re.search(r"AWS Error ([A-Z_]+)", str(error))
    return found[1].lower().replace("_", " ") if found else "the object store does not answer"
