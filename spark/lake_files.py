"""Files of the lake: data files, Iceberg's metadata, markers. They are named by locations, never by paths.

A location's store does the work (spark/storage); here its errors become the lake's.  Files that only pass
between processes of this machine are those of `spark.exchange`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from slotlake.decoder.errors import LAKE_ALTERED, DamagedError, LakeError
from slotlake.spark.exchange import CONTROL_DIRECTORY, make_directory, not_a_directory, probe
from slotlake.spark.lake import LakeSettings
from slotlake.spark.storage import side_by_side as side_by_side_writes
from slotlake.spark.storage import stores
from slotlake.spark.storage.base import Store, StoredFile
from slotlake.spark.storage.location import Location

_UPLOADS_AT_ONCE: Final = 4
_WRITABLE = (
    "free space in the warehouse and let this user write there; nothing was published",
    "check the bucket, lake.storage (endpoint, region, keys) and this user's rights; nothing was published",
)


def serve(lake: LakeSettings) -> None:
    """Make the lake's warehouse known to all that reads and writes locations."""
    if lake.is_in_bucket:
        stores.register(lake.root, lake.storage)


def read(location: str) -> bytes:
    """All bytes of a file.

    Raises:
        LakeError: it cannot be read.
    """
    with _readable(location):
        return stores.store_of(location).read(Location(location))


def open_to_read(location: str) -> BinaryIO:
    """A file of which parts are read, as an object that can seek.

    Raises:
        OSError: it cannot be read.
    """
    return stores.store_of(location).open(Location(location))


def read_parts(location: str, parts: Mapping[str, tuple[int, int]]) -> dict[str, bytes]:
    """Parts of a file, which need not be read whole.

    Args:
        parts: by any name the first byte and how many.

    Raises:
        LakeError: it cannot be read.
    """
    contents = {}
    with _readable(location), open_to_read(location) as file:
        for name, (start, count) in sorted(parts.items(), key=lambda part: part[1]):
            file.seek(start)
            contents[name] = file.read(count)
    return contents


def size(location: str) -> int | None:
    """A file's size in bytes; None if there is none.

    Raises:
        LakeError: the storage does not answer.
    """
    with _readable(location):
        return stores.store_of(location).size(Location(location))


def look_at(location: str) -> None:
    """See that a storage still gives a file.

    Raises:
        LakeError: it does not.
    """
    with _readable(location), stores.store_of(location).open(Location(location)) as file:
        file.read(1)


def files(folder: str) -> Iterator[StoredFile]:
    """Every file of a folder and its folders.

    Raises:
        LakeError: the storage does not answer.
    """
    with _readable(folder):
        yield from stores.store_of(folder).files(Location(folder))


def write_new(location: str, content: bytes) -> None:
    """Write a file that must not exist yet; when this returns a crash cannot take it away.

    Within :func:`side_by_side` that holds when the context ends.

    Raises:
        LakeError: it cannot be written.
    """
    writes = side_by_side_writes.present()
    with _writable(location):
        if writes is None:
            stores.store_of(location).write_new(Location(location), content)
        else:
            writes.begin(Location(location), content)


@contextmanager
def side_by_side() -> Iterator[None]:
    """Write the new files of the context at the same time, where each is a request; all are there at its end.

    Nothing may lead to any of them before.

    Raises:
        LakeError: one cannot be written.
    """
    with side_by_side_writes.gathered() as writes:
        try:
            yield
        finally:
            failures = writes.end()
    for location, error in failures.items():
        with _writable(location):
            raise error


def put(sources: Sequence[Path], folder: str, names: Sequence[str]) -> list[Location]:
    """Make files of this machine files of the lake, several at a time.

    Args:
        names: their names there, which nothing else has.

    Raises:
        LakeError: they cannot be written.
    """
    locations = [Location(folder) / name for name in names]
    store = stores.store_of(folder)
    with _writable(folder), ThreadPoolExecutor(_UPLOADS_AT_ONCE) as pool:
        list(pool.map(store.put, sources, locations))
    return locations


def remove(locations: Iterable[str]) -> None:
    """Remove files that nobody points at any more; missing ones are fine.

    Raises:
        LakeError: the storage does not answer, or refuses.
    """
    by_store: dict[Store, list[Location]] = {}  # of one bucket, with one pair of keys
    for location in map(Location, locations):
        by_store.setdefault(stores.store_of(location), []).append(location)
    for store, each in by_store.items():
        with _writable(each[0]):
            store.remove(each)


def remove_tree(folder: str) -> None:
    """Remove a folder with all in it; a missing one is fine.

    Raises:
        LakeError: the storage does not answer, or refuses.
    """
    with _writable(folder):
        stores.store_of(folder).remove_tree(Location(folder))


def absent(locations: Iterable[str]) -> list[str]:
    """Those of these files that are not there, several looked for at a time.

    Raises:
        LakeError: the storage does not answer.
    """
    return [location for location, present in sizes(locations).items() if present is None]


def sizes(locations: Iterable[str]) -> dict[str, int | None]:
    """The sizes of files in bytes, None of one that is not there; several are looked for at a time.

    Raises:
        LakeError: the storage does not answer.
    """
    locations = list(locations)
    with ThreadPoolExecutor(_UPLOADS_AT_ONCE * 4) as pool:
        return dict(zip(locations, pool.map(size, locations), strict=True))


def check_warehouse(lake: LakeSettings) -> None:
    """Make the warehouse if missing and see that it can be written.

    Raises:
        LakeError: it is no directory, or cannot be written; or an object store cannot do what is needed.
    """
    serve(lake)
    if lake.borrows_keys:
        return  # keys are lent for tables only: they are tried with one (spark/catalog/abilities.py)
    if lake.is_in_bucket:
        probe_bucket(lake)
        return
    path = lake.warehouse_path
    if path.exists() and not path.is_dir():
        raise not_a_directory(path, "the warehouse")
    probe(make_directory(path / CONTROL_DIRECTORY), path, "the warehouse")


def probe_bucket(lake: LakeSettings) -> None:
    """Write a new object, see that it cannot be written as new once more, read it, remove it.

    Raises:
        LakeError: one of these failed.
    """
    serve(lake)
    probe_place(lake.root / CONTROL_DIRECTORY)


def probe_place(folder: Location) -> None:
    """Write a new object, see that it cannot be written as new once more, read it, remove it.

    Raises:
        LakeError: one of these failed.
    """
    location = folder / f"probe-{uuid.uuid4().hex}"
    store = stores.store_of(location)
    with _writable(location):
        store.write_new(location, b"1")
    try:
        store.write_new(location, b"2")
    except FileExistsError:
        refused = True
    else:
        refused = False
    with _writable(location):
        content = store.read(location)
        store.remove([location])
    if not refused or content != b"1":
        raise LakeError(
            "the object store ignores the condition that a new object must not be there yet (If-None-Match)",
            where=str(folder),
            way_out="use a store, or a newer version of it, that supports conditional PUT: without it two "
            "runs could overwrite each other's files",
        )


@contextmanager
def _readable(location: str) -> Iterator[None]:
    writes = side_by_side_writes.present()
    if writes is not None:
        writes.wait_for(Location(location))
    try:
        yield
    except LakeError:
        raise  # an object store's error has its own words
    except OSError as error:
        kind = DamagedError if isinstance(error, FileNotFoundError) else LakeError
        raise kind(
            f"a file of the lake cannot be read: {error.strerror or error}",
            where=location,
            way_out=LAKE_ALTERED,
        ) from error


@contextmanager
def _writable(location: str) -> Iterator[None]:
    try:
        yield
    except LakeError:
        raise  # an object store's error has its own words
    except OSError as error:
        raise LakeError(
            f"a file of the lake cannot be written: {error.strerror or os.strerror(error.errno or 5)}",
            where=location,
            way_out=_WRITABLE[Location(location).is_in_bucket],
        ) from error
