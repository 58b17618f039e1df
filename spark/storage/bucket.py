"""The lake's files in an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure.

obstore makes the requests: it signs, retries with growing pauses (throttling, errors of the server, broken
connections), and gives up after a limit.  A file is written by one request, or by a multipart upload whose
last request makes it visible; both are whole or nothing.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from slotlake.spark.storage.base import Store, StoredFile
from slotlake.spark.storage.location import S3_SCHEMES, Location
from slotlake.spark.storage.recent import RecentContent
from slotlake.spark.storage.settings import StorageSettings

if TYPE_CHECKING:
    from obstore.store import ObjectStore

CONNECT_SECONDS: Final = 5
REQUEST_SECONDS: Final = 60
RETRY_SECONDS: Final = 120
_PART_BYTES: Final = 16 << 20
_PARTS_AT_ONCE: Final = 4
_READ_AHEAD_BYTES: Final = 4 << 20
_LISTED_AT_ONCE: Final = 1000
_RECENT_BYTES_MAX: Final = 32 << 20
# What a server says, out of the Debug text that obstore's errors are.
_ANSWER: Final = re.compile(r"<Code>([^<]+)</Code>.{0,20}?<Message>([^<]*)</Message>", re.DOTALL)


class BucketStore(Store):
    """Files of one bucket.

    Args:
        bucket: ``s3://bucket``, ``gs://bucket`` or ``abfss://container@account.dfs…``.
        settings: how it is reached.
    """

    def __init__(self, bucket: str, settings: StorageSettings) -> None:
        self._bucket = bucket
        self._store = _opened(bucket, settings)
        self._recent = RecentContent(_RECENT_BYTES_MAX)

    def read(self, location: Location) -> bytes:
        """Return all bytes of an object, by one request, or by none if it was read or written lately."""
        content = self._recent.get(location)
        if content is None:
            with _as_os_error(location):
                content = bytes(self._store.get(location.key).bytes())
            self._recent.put(location, content)
        return content

    def open(self, location: Location) -> BinaryIO:
        """Open an object; what is read is fetched in ranges of some megabytes."""
        with _as_os_error(location):
            reader = obstore.open_reader(self._store, location.key, buffer_size=_READ_AHEAD_BYTES)
        return cast("BinaryIO", io.BufferedReader(_Ranges(reader, location), 1 << 16))

    def write_new(self, location: Location, content: bytes) -> None:
        """Write an object that must not be there (If-None-Match); when this returns the store has it."""
        try:
            with _as_os_error(location):
                self._store.put(location.key, content, mode="create", use_multipart=False)
        except FileExistsError:
            self._recent.drop([location])
            if self.read(location) != content:  # else a retry met what the lost answer was about
                raise
        self._recent.put(location, content)

    def put(self, source: Path, location: Location) -> None:
        """Upload a file; a large one in parts, several at a time."""
        with _as_os_error(location):
            self._store.put(
                location.key,
                source,
                use_multipart=source.stat().st_size > _PART_BYTES,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def size(self, location: Location) -> int | None:
        """Return an object's size."""
        try:
            with _as_os_error(location):
                return int(self._store.head(location.key)["size"])
        except FileNotFoundError:
            return None

    def files(self, folder: Location) -> Iterator[StoredFile]:
        """Every object whose name begins with the folder's."""
        with _as_os_error(folder):
            for listed in self._store.list(f"{folder.key.rstrip('/')}/", chunk_size=_LISTED_AT_ONCE):
                for each in listed:
                    location = Location(f"{self._bucket}/{each['path']}")
                    yield StoredFile(location, each["size"], each["last_modified"].timestamp())

    def remove(self, locations: Collection[Location]) -> None:
        """Remove objects, a thousand by one request where the store can."""
        self._recent.drop(locations)
        keys = [location.key for location in locations]
        for at in range(0, len(keys), _LISTED_AT_ONCE):
            with _as_os_error(Location(self._bucket)):
                self._remove(keys[at : at + _LISTED_AT_ONCE])

    def remove_tree(self, folder: Location) -> None:
        """Remove all objects of a folder."""
        self.remove([file.location for file in self.files(folder)])

    def _remove(self, keys: list[str]) -> None:
        try:
            self._store.delete(keys)
        except FileNotFoundError:  # Google's and Azure's stores say so, and may have stopped there
            for key in keys:
                try:
                    self._store.delete(key)
                except FileNotFoundError:
                    continue


class _Ranges(io.RawIOBase):
    """obstore's reader as Python's readers are."""

    def __init__(self, reader: obstore.ReadableFile, location: Location) -> None:
        super().__init__()
        self._reader = reader
        self._location = location

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._reader.seek(offset, whence)

    def tell(self) -> int:
        return self._reader.tell()

    def readinto(self, buffer: Any) -> int:
        with _as_os_error(self._location):
            content = self._reader.read(len(buffer))
        buffer[: len(content)] = memoryview(content)
        return len(content)


def _opened(bucket: str, settings: StorageSettings) -> ObjectStore:
    limits: dict[str, Any] = {
        "client_options": {
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "allow_http": (settings.endpoint or "").startswith("http://"),
        },
        "retry_config": {"max_retries": 10, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
    }
    location = Location(bucket)
    if location.scheme in S3_SCHEMES:
        name = bucket.partition("://")[2]
        return S3Store(name, config=cast("Any", settings.obstore_config()), **limits)
    if location.scheme == "gs":
        return GCSStore.from_url(bucket, **limits)
    return AzureStore.from_url(bucket, **limits)


@contextmanager
def _as_os_error(location: Location) -> Iterator[None]:
    """Raise obstore's errors as Python's own errors of files.

    Raises:
        OSError: what the store said, in a line and without a signature or a key.
    """
    try:
        yield
    except AlreadyExistsError as error:
        raise FileExistsError(17, "the object is there already", location) from error
    except PreconditionError as error:
        raise FileExistsError(17, "the object is there already", location) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise PermissionError(13, f"the store refused the request: {_said(error)}", location) from error
    except FileNotFoundError as error:
        raise FileNotFoundError(2, "there is no such object, or no such bucket", location) from error
    except BaseError as error:
        raise OSError(5, f"the store could not be used: {_said(error)}", location) from error


def _said(error: BaseException) -> str:
    """The server's answer, or the first line of what happened."""
    text = str(error)
    answer = _ANSWER.search(text)
    if answer is not None:
        return f"{answer[1]}: {answer[2]}"
    line = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    return re.sub(r"(?i)(signature|credential|token)=[^&\s\"]+", r"\1=***", line)[:300]
