"""Whether files of a table are why it could not be changed: asked only after something has failed.

Spark says of a missing file what it says of anything.  So the table's own list of files is
compared with what is there, and what Spark names is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from slotlake.decoder.errors import DamagedError, LakeError, SlotlakeError
from slotlake.spark import lake_files
from slotlake.spark.catalog.base import Loaded
from slotlake.spark.maintenance.table_files import TableFiles
from slotlake.spark.names import LakeName
from slotlake.spark.storage.base import StoreRefusedError, StoreUnavailableError
from slotlake.spark.storage.location import Location
from slotlake.spark.storage.stores import canonical
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata

_NAMED_FILES_MAX = 3
_READ_BYTES_MAX = 64 << 20
_PARQUET = re.compile(r"[\w.+=%-]+\.parquet")
_STORE_ERRORS = (StoreUnavailableError, StoreRefusedError)
MENDED = (
    "run `slotlake recover`: it shows what is missing, and with --yes copies the table again; so does a "
    "later sync. A file that is put back before is read again"
)


def damage_behind(
    error: BaseException, tables: Sequence[Loaded], source: tuple[str, str]
) -> DamagedError | None:
    """Return what is wrong with the files of tables, if something is; it names the source table."""
    if isinstance(error, SlotlakeError) and (error.retryable or error.table or not _is_of_files(error)):
        return None
    named = set(_PARQUET.findall(" ".join(_texts(error))))
    try:
        wrong = [what for table in tables for what in unreadable(table, named)]
    except _STORE_ERRORS:
        return None  # the store fails: that says nothing about the table
    if not wrong:
        return None
    what, where = wrong[0]
    return DamagedError(what, where=f"table {tables[0].name}, {where}", way_out=MENDED).of(*source)


def _is_of_files(error: SlotlakeError) -> bool:
    return isinstance(error, LakeError) and not isinstance(error, _STORE_ERRORS)


def _texts(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield f"{error} {getattr(error, 'where', '')}"
        error = error.__cause__


def damage_behind_query(
    error: BaseException, read: Iterable[tuple[LakeName, Metadata, Metadata | None]]
) -> DamagedError | None:
    """Return what is wrong with the files of tables that a query has read, if something is.

    Args:
        read: of each table its name, its metadata and the snapshot.
    """
    named = set(_PARQUET.findall(" ".join(_texts(error))))
    try:
        for name, metadata, snapshot in read:
            for what, where in unreadable(Loaded(name, "", metadata), named, snapshot):
                return DamagedError(what, where=where, way_out=MENDED)
    except _STORE_ERRORS:
        return None
    return None


def require_manifests(read: Iterable[tuple[LakeName, Metadata, Metadata | None]]) -> None:
    """See that the manifests of tables can be read: at one that cannot, DuckDB 1.5.5 ends the whole process.

    Args:
        read: of each table its name, its metadata and the snapshot.

    Raises:
        DamagedError: one is missing or damaged.
    """
    for name, _, snapshot in read:
        if snapshot is not None:
            _listed_files(name, [snapshot])


def unreadable(
    table: Loaded, named: Collection[str] | None = None, snapshot: Metadata | None = None
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the files of a snapshot of a table, and where.

    Args:
        snapshot: of the table; None: its newest.
        named: names of data files that are read whole; if there are none, some are; None: no file is read.

    Raises:
        StoreUnavailableError, StoreRefusedError: the store fails.
    """
    heads = [snapshot or catalog_metadata.head(table.metadata)]
    try:
        listed = _listed_files(table.name, [head for head in heads if head])
    except DamagedError as error:
        yield error.what, error.where
        return
    sizes = lake_files.sizes(listed)
    missing = sorted(path for path, size in sizes.items() if size is None)
    shortened = sorted(
        path for path, size in sizes.items() if listed[path] and size not in (None, listed[path])
    )
    for files, what in ((missing, "are missing"), (shortened, "have another size")):
        if files:
            yield f"{len(files)} of {len(listed)} files of {table.name} {what}: {_listed(files)}", files[0]
    rest = {path: size for path, size in listed.items() if path not in {*missing, *shortened}}
    for path in _to_read(rest, named):
        if not _is_parquet(path):
            yield f"a data file of {table.name} is damaged: {Location(path).name}", path


def _listed_files(name: LakeName, snapshots: Sequence[Metadata]) -> dict[str, int]:
    """The files of snapshots → bytes; raises a `DamagedError` if a list of them cannot be read."""
    try:
        return TableFiles().referenced_files(snapshots)
    except _STORE_ERRORS:
        raise
    except LakeError as error:
        what = f"a metadata file of {name} cannot be read: {error.where}"
        raise DamagedError(what, where=error.where, way_out=MENDED) from error


def _to_read(listed: Mapping[str, int], named: Collection[str] | None) -> list[str]:
    """The Parquet files that are read whole: those that are named; if none is, as many as is soon done."""
    files = sorted(path for path in listed if path.endswith(".parquet")) if named is not None else []
    if named:
        return [path for path in files if Location(path).name in named]
    sums = accumulate(listed[path] for path in files)
    return [path for path, so_far in zip(files, sums, strict=True) if so_far <= _READ_BYTES_MAX]


def _listed(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _NAMED_FILES_MAX} more" if len(paths) > _NAMED_FILES_MAX else ""
    return ", ".join(Location(path).name for path in paths[:_NAMED_FILES_MAX]) + more


def _is_parquet(path: str) -> bool:
    """Return whether a file can be read whole."""
    try:
        with lake_files.open_to_read(canonical(path)) as source, pq.ParquetFile(source) as file:
            for _ in file.iter_batches():
                pass
    except _STORE_ERRORS:
        raise
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        return False
    return True
