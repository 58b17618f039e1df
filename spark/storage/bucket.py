"""The lake's files in an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure.

obstore makes the requests: it signs, retries with growing pauses (throttling, errors of the server, broken
connections), and gives up after a limit.  A file is written by one request, or by a multipart upload whose
last request makes it visible; both are whole or nothing.
"""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from obstore.store import AzureStore, GCSStore, S3Store

from slotlake.spark.storage import requests
from slotlake.spark.storage.base import Store, StoredFile, StoreUnavailableError
from slotlake.spark.storage.keys.signing import Keys
from slotlake.spark.storage.location import S3_SCHEMES, Location
from slotlake.spark.storage.settings import StorageSettings

if TYPE_CHECKING:
    from obstore.store import ObjectStore, S3Credential

_PART_BYTES: Final = 16 << 20
_PARTS_AT_ONCE: Final = 4
_UPLOADS_MAX: Final = 3
_FIRST_BYTES: Final = 64 << 10
_READ_AHEAD_BYTES: Final = 4 << 20
_LISTED_AT_ONCE: Final = 1000
_RECENT_BYTES_MAX: Final = 32 << 20
_ASKED_AGAIN: Final = timedelta(seconds=10)


class BucketStore(Store):
    """Files of one bucket.

    Args:
        bucket: ``s3://bucket``, ``gs://bucket`` or ``abfss://container@account.dfs…``.
        settings: how it is reached.
        lent: gives the keys that are lent for a part of it, other ones from time to time; None: those of
            ``settings``.
    """

    def __init__(
        self, bucket: str, settings: StorageSettings, lent: Callable[[], Keys] | None = None
    ) -> None:
        keys = lent or settings.keys
        self._bucket = bucket
        self._store = _opened(bucket, settings, keys)
        self._recent = RecentContent(_RECENT_BYTES_MAX) if lent is None else _shared(os.getpid())
        self._name = settings.endpoint or bucket
        own = keys if Location(bucket).scheme in S3_SCHEMES else None
        self._ask = requests.Endpoint(self._name, own).ask

    def read(self, location: Location) -> bytes:
        """Return all bytes of an object, by one request, or by none if it was read or written lately."""
        content = self._recent.get(location)
        if content is None:
            content = self._ask(
                "read an object", location, lambda: bytes(self._store.get(location.key).bytes())
            )
            self._recent.put(location, content)
        return content

    def open(self, location: Location) -> BinaryIO:
        """Open an object; what is read is fetched in ranges of some megabytes.

        Raises:
            OSError: there is no such object, or the store fails.
        """
        size, first = self._ask("read an object", location, partial(self._beginning, location.key))
        return cast("BinaryIO", io.BufferedReader(_Ranges(self, location, size, first), 1 << 16))

    def _beginning(self, key: str) -> tuple[int, bytes]:
        """An object's size and its first bytes, by one request: many an object is not larger."""
        answer = self._store.get(key, options={"range": (0, _FIRST_BYTES)})
        return int(answer.meta["size"]), bytes(answer.bytes())

    def read_range(self, location: Location, start: int, length: int) -> bytes:
        """Return bytes of an object.

        Args:
            start: the first byte's offset.
            length: how many bytes; the object has them.
        """
        return self._ask(
            "read an object",
            location,
            lambda: bytes(self._store.get_range(location.key, start=start, length=length)),
        )

    def write_new(self, location: Location, content: bytes) -> str:
        """Write an object that must not be there (If-None-Match); when this returns the store has it."""
        create = partial(self._store.put, location.key, content, mode="create", use_multipart=False)
        version = ""
        try:
            version = self._ask("write an object", location, create).get("e_tag") or ""
        except FileExistsError:
            self._recent.drop([location])
            if self.read(location) != content:  # else a retry met what the lost answer was about
                raise
        self._recent.put(location, content)
        return version

    def put(self, source: Path, location: Location) -> None:
        """Upload a file; a large one in parts, several at a time.

        Raises:
            OSError: it cannot be read, or the store fails.
        """
        for _ in range(_UPLOADS_MAX):
            if self._uploaded(source, location):
                return
        raise StoreUnavailableError(
            f"the object store {self._name} ended an upload in parts {_UPLOADS_MAX} times",
            where=location,
            way_out="see in the store's log why parts of an upload fail, then run the same command again",
        )

    def _uploaded(self, source: Path, location: Location) -> bool:
        """Upload a file; false if the store says that there is no such upload, and not because it is done.

        obstore ends an upload of which a part has failed, and may then report what another part met.
        """
        size = source.stat().st_size
        upload = partial(
            self._store.put,
            location.key,
            source,
            use_multipart=size > _PART_BYTES,
            chunk_size=_PART_BYTES,
            max_concurrency=_PARTS_AT_ONCE,
        )
        try:
            self._ask("write an object", location, upload)
        except FileNotFoundError:
            if size <= _PART_BYTES:
                raise
            return self.size(location) == size  # a retry met its own success
        return True

    def size(self, location: Location) -> int | None:
        """Return an object's size."""
        try:
            return int(self._ask("find an object", location, lambda: self._store.head(location.key))["size"])
        except FileNotFoundError:
            return None

    def files(self, folder: Location, after: str = "") -> Iterator[StoredFile]:
        """Every object whose name begins with the folder's."""
        prefix = f"{folder.key.rstrip('/')}/"
        last = f"{prefix}{after}" if after else None
        pages: Iterator[Any] | None = None

        def next_page() -> Any:
            nonlocal pages
            try:
                pages = pages or self._store.list(prefix, offset=last, chunk_size=_LISTED_AT_ONCE)
                return next(pages, None)
            except Exception:
                pages = None  # a list that failed says afterwards that it is at its end
                raise

        while listed := self._ask("list objects", folder, next_page):
            for each in listed:
                last = each["path"]
                location = Location(f"{self._bucket}/{last}")
                modified = each["last_modified"].timestamp()
                yield StoredFile(location, each["size"], modified, each.get("e_tag") or "")

    def remove(self, locations: Collection[Location]) -> None:
        """Remove objects, a thousand by one request where the store can."""
        self._recent.drop(locations)
        several = list(locations)
        for at in range(0, len(several), _LISTED_AT_ONCE):
            keys = [location.key for location in several[at : at + _LISTED_AT_ONCE]]
            self._ask("remove an object", several[at], partial(self._remove, keys))

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
    """An object as Python's readers are, fetched in ranges of some megabytes; the last range is at hand."""

    def __init__(self, store: BucketStore, location: Location, size: int, first: bytes) -> None:
        super().__init__()
        self._store, self._location, self._size = store, location, size
        self._position, self._start, self._content = 0, 0, first

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, begin + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._size - self._position))
        if not length:
            return 0
        at = self._position - self._start
        if not 0 <= at <= len(self._content) - length:
            ahead = min(max(length, _READ_AHEAD_BYTES), self._size - self._position)
            self._content = self._store.read_range(self._location, self._position, ahead)
            self._start, at = self._position, 0
        buffer[:length] = self._content[at : at + length]
        self._position += length
        return length


@cache
def _shared(process: int) -> RecentContent:
    """What a process read lately with keys that are lent, of which each table has its own."""
    return RecentContent(_RECENT_BYTES_MAX)


def _opened(bucket: str, settings: StorageSettings, keys: Callable[[], Keys]) -> ObjectStore:
    limits = requests.limits(settings.endpoint)
    location = Location(bucket)
    if location.scheme in S3_SCHEMES:
        name = bucket.partition("://")[2]
        config = cast("Any", settings.obstore_config())
        return S3Store(name, config=config, credential_provider=_credential(settings, keys), **limits)
    if location.scheme == "gs":
        return GCSStore.from_url(bucket, config=cast("Any", settings.google_config()), **limits)
    return AzureStore.from_url(bucket, config=cast("Any", settings.azure_config()), **limits)


def _credential(settings: StorageSettings, current: Callable[[], Keys]) -> Callable[[], S3Credential]:
    """What gives obstore its keys: the environment alone would add a token of its own to other keys."""

    def credential() -> S3Credential:
        keys, until = current(), None
        if (
            not settings.access_key
        ):  # obstore uses them until then; they are renewed, or others, before they end
            ends = [datetime.fromtimestamp(keys.until, UTC)] if keys.until is not None else []
            until = min([datetime.now(UTC) + _ASKED_AGAIN, *ends])
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token or None,
            "expires_at": until,
        }

    return credential


# Small metadata files read or written lately, each asked for once: a file of a lake never changes.

_FILE_BYTES_MAX: Final = 1 << 20


class RecentContent:
    """Bytes by location; those that were used longest ago leave first.

    Args:
        bytes_max: so much is kept in memory.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._contents: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, location: str) -> bytes | None:
        """Return a file's bytes, if they are known."""
        with self._lock:
            if location in self._contents:
                self._contents.move_to_end(location)
            return self._contents.get(location)

    def put(self, location: str, content: bytes) -> None:
        """Keep the bytes of a small metadata file.

        Data files and deletion vectors are read each time: a verification must see what is stored.
        """
        if len(content) > _FILE_BYTES_MAX or "/metadata/" not in location:
            return
        with self._lock:
            self._bytes += len(content) - len(self._contents.pop(location, b""))
            self._contents[location] = content
            while self._bytes > self._bytes_max:
                self._bytes -= len(self._contents.popitem(last=False)[1])

    def drop(self, locations: Collection[str]) -> None:
        """Forget files that are removed, or are not what they were taken for."""
        with self._lock:
            for location in locations:
                self._bytes -= len(self._contents.pop(location, b""))
