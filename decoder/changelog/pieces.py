"""A batch's files read piece by piece, for who has not the memory for a whole relation version.

A piece is a row group, that is one decoded chunk (`decoder.changelog.writer`); its size is bounded but for a
single large row.  Files are read, not mapped: mapped pages count as memory of this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_OFFSET_BYTES = 4


def bytes_in_memory(path: Path) -> int:
    """Return about how many bytes a Parquet file's rows take as Arrow arrays; reads its footer only.

    Raises:
        OSError: it cannot be read.
        pyarrow.ArrowException: it is no Parquet file.
    """
    with pq.ParquetFile(path) as file:
        fixed = sum(_width(field.type) for field in file.schema_arrow)
        varying = {i for i, field in enumerate(file.schema_arrow) if not _is_fixed(field.type)}
        total = fixed * file.metadata.num_rows
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            total += sum(group.column(i).total_uncompressed_size for i in varying)
        return int(total)


def row_groups(path: Path) -> Iterator[pa.Table]:
    """Read a Parquet file, one row group at a time.

    Raises:
        OSError: it cannot be read.
        pyarrow.ArrowException: it is no Parquet file.
    """
    with pq.ParquetFile(path) as file:
        for number in range(file.metadata.num_row_groups):
            yield file.read_row_group(number)


def rows_between(path: Path, first: int, last: int) -> pa.Table:
    """Read some rows of a Parquet file, and only the row groups that have them.

    Args:
        first: number of the first row.
        last: number of the row after the last one.

    Raises:
        OSError: it cannot be read.
        pyarrow.ArrowException: it is no Parquet file.
    """
    with pq.ParquetFile(path) as file:
        groups: list[int] = []
        before = start = 0
        for number in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            if start < last and start + rows > first:
                before = before if groups else start
                groups.append(number)
            start += rows
        return file.read_row_groups(groups).slice(first - before, last - first)


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind))


def _width(kind: pa.DataType) -> float:
    return kind.bit_width / 8 if _is_fixed(kind) else _OFFSET_BYTES
