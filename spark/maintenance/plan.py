"""Decides which files of a table are worth being written anew.

How much is rewritten: points that are kept hold on to the files that a rewrite replaces, so a table rewritten
too eagerly is stored several times over.  Hence files have an eighth of the table's size (not above the
target), only those below half of that are packed, and a file is written anew for its deleted rows when these
are a tenth of it and what kept points hold beside the table stays below three quarters of the table; or when
they are three tenths, whatever is held: reading would suffer more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slotlake.spark.maintenance.expiry import Grace
from slotlake.spark.maintenance.table_files import DataFile, Partition
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.layout import sort_order_id
from slotlake.spark.tables.metadata import Metadata

_MIB = 1024 * 1024
CORES = 4
_TARGET_BYTES_MIN = 4 * _MIB
_FILES_OF_A_TABLE = 8
_SMALL_SHARE = 0.5
_SMALL_FILES_MIN = 5
_DELETED_SHARE, _DELETED_SHARE_MAX = 0.1, 0.3
_OLD_FILES_SHARE_MAX = 0.75
LIMITED = "max-files-to-rewrite"


@dataclass(frozen=True)
class Care:
    """How a lake is maintained.

    Attributes:
        target_bytes: of a large table's data files.
        rewrite_bytes_max: so much of a table is rewritten in one go by up to `CORES` cores, and as much more
            as there are more of them; the rest next time.
        rewrite_layout: a table with files of an earlier layout is rewritten whole.
    """

    grace: Grace
    target_bytes: int = 128 * _MIB
    rewrite_bytes_max: int = 8 * 1024 * _MIB
    rewrite_layout: bool = False


def has_earlier_layout(metadata: Metadata, files: Sequence[DataFile]) -> bool:
    """Return whether files were written by another partition spec than the table has now.

    Files of another sort order do not say so; of a table that is sorted, one is taken to be there if some
    snapshot added files since its last rewriting.
    """
    spec = metadata["default-spec-id"]
    if any(file.partition[0] != spec for file in files):
        return True
    head = catalog_metadata.summary(catalog_metadata.head(metadata))
    return bool(files) and bool(sort_order_id(metadata)) and head.get("operation") != "replace"


def by_partition(files: Iterable[DataFile]) -> list[list[DataFile]]:
    """The files of each partition: only those of one can be packed together."""
    partitions: dict[Partition, list[DataFile]] = {}
    for file in files:
        partitions.setdefault(file.partition, []).append(file)
    return list(partitions.values())


def sizes(files: Sequence[DataFile], care: Care) -> dict[str, str]:
    """Options of Iceberg's ``rewrite_data_files``: how large files are to be."""
    live = sum(int(file.size * (1 - file.deleted_share)) for file in files)
    target = max(_TARGET_BYTES_MIN, min(care.target_bytes, live // _FILES_OF_A_TABLE))
    return {"target-file-size-bytes": str(target)}


def plan(files: Sequence[DataFile], old_bytes: int, care: Care) -> Mapping[str, str] | None:
    """Options of Iceberg's ``rewrite_data_files``; None if there is nothing worth it.

    Args:
        old_bytes: of files that only older snapshots need.
    """
    live = sum(int(file.size * (1 - file.deleted_share)) for file in files)
    target = max(_TARGET_BYTES_MIN, min(care.target_bytes, live // _FILES_OF_A_TABLE))
    small = [file for file in files if file.size < target * _SMALL_SHARE]
    share = _share_to_rewrite(files, _OLD_FILES_SHARE_MAX * live - old_bytes)
    packed = [file for some in by_partition(small) for file in some if len(some) >= _SMALL_FILES_MIN]
    to_rewrite = {f.path: f for f in [*packed, *(f for f in files if share and f.deleted_share >= share)]}
    if not to_rewrite:
        return None
    options = {
        "target-file-size-bytes": str(target),
        "min-file-size-bytes": str(int(target * _SMALL_SHARE)),
        "max-file-size-bytes": str(max(care.target_bytes, *(f.size for f in files)) * 2),
        "min-input-files": str(_SMALL_FILES_MIN),
        "delete-ratio-threshold": repr(share or 1.0),
    }
    if sum(file.size for file in to_rewrite.values()) > care.rewrite_bytes_max:
        options[LIMITED] = str(_how_many_fit(list(to_rewrite.values()), care.rewrite_bytes_max))
    return options


def _share_to_rewrite(files: Sequence[DataFile], budget: float) -> float | None:
    """From which share of deleted rows on files are written without them; None: none is."""
    share = None
    for file in sorted(files, key=lambda file: -file.deleted_share):
        budget -= file.size
        if file.deleted_share < _DELETED_SHARE or (budget < 0 and file.deleted_share < _DELETED_SHARE_MAX):
            break
        share = file.deleted_share
    return share


def _how_many_fit(files: Sequence[DataFile], size: int) -> int:
    bytes_so_far = 0
    for count, file in enumerate(files):
        bytes_so_far += file.size
        if bytes_so_far > size:
            return max(count, 1)
    return len(files)
