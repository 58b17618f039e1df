"""The Parquet files of a copied part of a table, ready for an Iceberg table: with field ids and exact texts.

Invariant: a file that `PartFiles.finish` returns is whole and on disk; a part that failed leaves no file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from slotlake.decoder.catalog.publications import SourceColumn, SourceTable
from slotlake.decoder.changelog.writer import sync_path
from slotlake.decoder.errors import ChangeLogError
from slotlake.decoder.types.floats import bounded
from slotlake.decoder.types.representations import Pair, Representation
from slotlake.decoder.types.table import column_type

ROWS_PER_FILE = 2_000_000
_ROWS_LOOKED_AT = 10_000
_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 3,
    "store_decimal_as_integer": True,
}


class CopyPlace(Protocol):
    """The directory of one table's files, and their columns; keys are source column names."""

    @property
    def directory(self) -> Path: ...
    @property
    def names(self) -> Mapping[str, str]: ...
    @property
    def field_ids(self) -> Mapping[str, int]: ...
    @property
    def exact_names(self) -> Mapping[str, str]: ...
    @property
    def exact_field_ids(self) -> Mapping[str, int]: ...
    @property
    def representations(self) -> Mapping[str, Representation]: ...
    @property
    def inner_ids(self) -> Mapping[str, Sequence[int]]: ...


@dataclass(frozen=True)
class CopiedFile:
    """A finished file.

    Attributes:
        bytes: its size.
        exact: source columns for which it has a column with exact texts.
        received: bytes of the COPY from which it was written.
        lossy: those of the columns in ``exact`` that do not hold some value.
    """

    path: Path
    rows: int
    bytes: int
    exact: tuple[str, ...]
    received: int = 0
    lossy: tuple[str, ...] = ()


class PartFiles:
    """The Parquet files of one part; a new file begins if the last is long enough or lacks a column.

    Args:
        stem: the beginning of the files' names, different for each part of a table.
    """

    def __init__(self, table: SourceTable, place: CopyPlace, stem: str, rows_per_file: int) -> None:
        self._table, self.place, self._stem, self._rows_per_file = table, place, stem, rows_per_file
        self._done: list[CopiedFile] = []
        self._writer: parquet.ParquetWriter | None = None
        self._path = place.directory
        self._exact: tuple[str, ...] = ()
        self._lossy: set[str] = set()
        self._file_rows = self._file_received = 0
        self.rows = 0

    def append(self, rows: int, columns: list[Pair], received: int = 0) -> None:
        """Write rows: for each column its typed values, and the exact texts if some value needs one.

        Args:
            columns: per column its typed values, and the exact texts if some value needs one, else None.
            received: bytes of the COPY that the rows came from.
        """
        named = list(zip(self._table.columns, columns, strict=True))
        exact = tuple(column.name for column, (_, text) in named if text is not None)
        arrays = [typed for _, (typed, _) in named]
        if self._writer is None or not set(exact) <= set(self._exact):
            names = tuple(c.name for c in self._table.columns if c.name in {*exact, *self._exact})
            self._next_file(names, arrays)
        assert self._writer is not None
        texts = {column.name: text for column, (_, text) in named if text is not None}
        self._lossy |= {column.name for column, pair in named if _is_lossy(pair)}
        arrays += [texts.get(name, pa.nulls(rows, pa.string())) for name in self._exact]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=cast("pa.Schema", self._writer.schema)))
        self._file_rows += rows
        self._file_received += received
        self.rows += rows
        if self._file_rows >= self._rows_per_file:
            self._close()

    def _next_file(self, exact: tuple[str, ...], first: list[pa.Array | pa.ChunkedArray]) -> None:
        self._close()
        self._exact = exact
        self._path = self.place.directory / f"{self._stem}-{len(self._done):05d}.parquet"
        schema = self._schema()
        alike = [field.name for field, values in zip(schema, first, strict=False) if _repeats(values)]
        alike += [field.name for field in list(schema)[len(first) :]]  # exact texts: infinities, NaN
        options: dict[str, Any] = {**_PARQUET, "use_dictionary": alike, "write_statistics": bounded(schema)}
        self._writer = parquet.ParquetWriter(self._path, schema, **options)

    def _schema(self) -> pa.Schema:
        place = self.place
        fields = [
            _field(place.names[c.name], _file_type(place, c), place.field_ids[c.name])
            for c in self._table.columns
        ]
        fields += [
            _field(place.exact_names[name], pa.string(), place.exact_field_ids[name]) for name in self._exact
        ]
        return pa.schema(fields)

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.close()
        sync_path(self._path)
        size = self._path.stat().st_size
        lossy = tuple(sorted(self._lossy))
        file = CopiedFile(self._path, self._file_rows, size, self._exact, self._file_received, lossy)
        self._done.append(file)
        self._file_rows = self._file_received = 0
        self._lossy = set()

    def finish(self) -> list[CopiedFile]:
        """End the last file; return all files, in order."""
        self._close()
        if self._done:
            sync_path(self.place.directory)
        return self._done

    def abandon(self) -> None:
        """Remove all files."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        except (OSError, pa.ArrowException):
            pass
        for path in [*(file.path for file in self._done), self._path]:
            if path.suffix == ".parquet":
                path.unlink(missing_ok=True)


def _is_lossy(pair: Pair) -> bool:
    """Return whether some value has a text, and the column has it not."""
    typed, exact = pair
    return exact is not None and bool(pc.any(pc.and_(exact.is_valid(), typed.is_null())).as_py())


def _repeats(values: pa.Array | pa.ChunkedArray) -> bool:
    """True if a dictionary makes the column smaller; for most numbers, times and texts it only costs time."""
    if not pa.types.is_string(values.type):
        return False
    some = values.slice(0, _ROWS_LOOKED_AT)
    return bool(pc.count_distinct(some).as_py() * 2 <= len(some))


def _field(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={b"PARQUET:field_id": str(field_id).encode()})


def _file_type(place: CopyPlace, column: SourceColumn) -> pa.DataType:
    """The column's type in the files; a nested type has the field ids of its parts."""
    representation = place.representations.get(column.name)
    if representation is None:
        return column_type(column.type_oid, column.typmod).arrow
    kind, ids = representation.arrow, list(place.inner_ids.get(column.name, ()))
    if ids and pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field.name, kind.value_type, ids[0]))
    if ids and pa.types.is_struct(kind):
        return pa.struct([_field(part.name, part.type, id_) for part, id_ in zip(kind, ids, strict=True)])
    return kind


def unwritable(directory: Path, error: Exception) -> ChangeLogError:
    """The error for a file that cannot be written."""
    number = getattr(error, "errno", None)
    reason = os.strerror(number) if number else str(error)
    return ChangeLogError(
        f"the copied table cannot be written: {reason}",
        where=str(directory),
        way_out="free space on the disk, or enlarge it, or correct the permissions of the folder; then run "
        "the same command again. The files of this part of the table were removed",
    )
