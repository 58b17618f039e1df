"""Packs a table's small files after a batch, so that their number stays bounded without `maintain`.

Each batch adds a file or a few, and the next MERGE opens all that may hold a key of its batch, with their
deletion vectors.  So a table is looked at when its last :data:`FILES_MIN` small files have come since it was
last compacted.  How many there are, the summaries of its snapshots say: no manifest is read before.

What is packed: files below a share of the target size, and those with half of their rows deleted, which count
as what is left of them; only those of one partition together.  Taken by size, a file is packed only if all
smaller ones together are as large.  So each row is written again about as often as the table doubles what it
packs (a logarithm), and not with each compaction; the sizes that stay are few, because each is larger than
all below it together.

The work on a table is bounded (files below a share of the target size, no more than the target size in all),
and it is the work of `rewrite`: one snapshot of operation ``replace``, on ``main`` at once.  Who has a way to
write it without Spark (`spark.direct.packing`) hands it in; Spark does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from slotlake.decoder.failpoints import reach
from slotlake.spark.catalog.base import Loaded, load, load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.plan import by_partition
from slotlake.spark.maintenance.rewrite import remove_useless_deletes, rewrite_files
from slotlake.spark.maintenance.table_files import DataFile, TableFiles
from slotlake.spark.maintenance.turns import is_staged
from slotlake.spark.merge.during_statements import failpoint_during
from slotlake.spark.names import LakeName
from slotlake.spark.publish.derived_tables import derived_table_names, with_derived_names
from slotlake.spark.publish.swap import require_owner
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata

# From measurement (docs/adr/0040): a compaction costs about what forty small files cost forty batches.
FILES_MIN = 40
_SMALL_SHARE = 1 / 64  # of the target size: 2 MB of 128 MB
_DELETED_SHARE = 0.5
_PACKED_FILES_MIN = 5
# Packs these files of a table without Spark; False: that is left to Spark, and nothing was done.
Directly = Callable[[LakeSettings, Loaded, Sequence[str]], bool]


@dataclass(frozen=True)
class Packed:
    """What was packed of a table: how many files, into how many."""

    table: LakeName
    rewritten_files: int
    written_files: int


def tables_to_pack(lake: LakeSettings, mirrors: Collection[LakeName], target_bytes: int) -> list[LakeName]:
    """Those of these tables, and of their derived tables, that got many small files; most files first.

    Args:
        mirrors: the tables that a batch has changed.

    Raises:
        LakeError: the catalog cannot be reached.
    """
    counts: dict[LakeName, int] = {}
    with open_catalog(lake) as catalog:
        pointers = catalog.pointers_of(with_derived_names(mirrors))
        for mirror in mirrors:
            names = (mirror, *derived_table_names(pointers, mirror).values())
            tables = [load(pointers, name) for name in names if name in pointers]
            counts |= {table.name: _files_added(table.metadata, target_bytes) for table in tables}
    return sorted((name for name in counts if counts[name] >= FILES_MIN), key=lambda name: -counts[name])


def _files_added(metadata: Metadata, target_bytes: int) -> int:
    """How many files came since the last compaction, without large ones of whose rows most are there."""
    is_worn = _deleted_share(metadata) >= _DELETED_SHARE
    added = 0
    for summary in map(catalog_metadata.summary, catalog_metadata.ancestry(metadata)):
        if summary.get("operation") == "replace":
            break
        files, size = int(summary.get("added-data-files", 0)), int(summary.get("added-files-size", 0))
        if files and (is_worn or size < files * target_bytes * _SMALL_SHARE):
            added += files
        # What is staged without Spark takes small files along (`spark.direct.packing`).
        added -= int(summary.get("deleted-data-files", 0))
    return max(0, added)


def _deleted_share(metadata: Metadata) -> float:
    totals = catalog_metadata.summary(catalog_metadata.head(metadata))
    rows, deleted = (int(totals.get(f"total-{what}", 0)) for what in ("records", "position-deletes"))
    return deleted / rows if rows else 0.0


def _never(lake: LakeSettings, table: Loaded, locations: Sequence[str]) -> bool:
    return False


def pack_table(
    session: Callable[[], SparkSession],
    lake: LakeSettings,
    name: LakeName,
    pipeline: str,
    target_bytes: int,
    directly: Directly = _never,
) -> Packed | None:
    """Pack a table's small files; None if there was nothing worth it, or a batch is staged.

    Args:
        session: starts, or gives, the session that runs the rewrite; called only if Spark has to do it.

    Raises:
        LakeError: Spark failed, the table was changed meanwhile, or a file of it cannot be read. The table is
            as it was.
    """
    before = _load(lake, name, pipeline)
    present = _data_files(before)
    files = list(present.values())
    chosen = [] if is_staged(before) else files_to_pack(files, target_bytes)
    if not chosen:
        return None
    with failpoint_during("compact.rewriting"):
        packed = directly(lake, before, [file.path for file in chosen])
        if not packed:
            rewrite_files(session(), lake, before, _options(files, chosen, target_bytes))
    if not packed:
        remove_useless_deletes(session, lake, before, TableFiles())
    reach("compact.rewritten")
    with open_catalog(lake) as catalog:
        catalog.bring(name)
    after = _data_files(_load(lake, name, pipeline))
    gone = present.keys() - after.keys()  # none, if each is alone in its partition
    return Packed(name, len(gone), len(after.keys() - present.keys())) if gone else None


def _load(lake: LakeSettings, name: LakeName, pipeline: str) -> Loaded:
    with open_catalog(lake) as catalog:
        table = load_one(catalog, name)
    require_owner(table, pipeline)
    return table


def _data_files(table: Loaded) -> dict[str, DataFile]:
    head = catalog_metadata.head(table.metadata)
    return {file.path: file for file in TableFiles().data_files(head)}


def files_to_pack(files: Sequence[DataFile], target_bytes: int) -> list[DataFile]:
    """Return the files that are worth packing; those of one partition are packed together."""
    chosen = [_packed(some, target_bytes) for some in by_partition(files)]
    return [file for some in chosen if len(some) >= _PACKED_FILES_MIN for file in some]


def plan_packing(files: Sequence[DataFile], target_bytes: int) -> Mapping[str, str] | None:
    """Options of Iceberg's ``rewrite_data_files``; None if there is nothing worth it."""
    packed = files_to_pack(files, target_bytes)
    return _options(files, packed, target_bytes) if packed else None


def _options(files: Sequence[DataFile], packed: Sequence[DataFile], target_bytes: int) -> Mapping[str, str]:
    partitions = by_partition(files)
    paths = {file.path for file in packed}
    worn = [file.deleted_share for file in packed if _is_worn(file)]
    others = [file.deleted_share for file in files if file.path not in paths]
    share = min(worn, default=1.0)
    if any(other >= share for other in others):  # Iceberg would take those too, whatever their size
        share = 1.0
    return {
        "target-file-size-bytes": str(target_bytes),
        "min-file-size-bytes": str(1 + max((f.size for f in packed if not _is_worn(f)), default=0)),
        "max-file-size-bytes": str(max(target_bytes, *(f.size for f in files)) * 2),
        # Of other partitions as many files may be as small; they are left if they are few.
        "min-input-files": "2" if len(partitions) == 1 else str(_PACKED_FILES_MIN),
        "delete-ratio-threshold": repr(share),
        "max-files-to-rewrite": str(len(packed) if len(partitions) == 1 else len(files)),
    }


def _packed(files: Sequence[DataFile], target_bytes: int) -> list[DataFile]:
    """The smallest files, as far as each is no larger than those before it together."""
    chosen: list[DataFile] = []
    small: list[DataFile] = []
    size = 0
    for file in _by_size(files, target_bytes):
        fits = _live_bytes(file) <= size
        small.append(file)
        size += _live_bytes(file)
        if size > target_bytes:
            break
        if fits:
            chosen = list(small)
    return chosen


def _by_size(files: Sequence[DataFile], target_bytes: int) -> Iterator[DataFile]:
    yield from sorted(
        (file for file in files if _live_bytes(file) < target_bytes * _SMALL_SHARE), key=_live_bytes
    )


def _is_worn(file: DataFile) -> bool:
    return file.deleted_share >= _DELETED_SHARE


def _live_bytes(file: DataFile) -> int:
    """What is left of a file that is rewritten for its deleted rows; the whole size of another."""
    return int(file.size * (1 - file.deleted_share)) if _is_worn(file) else file.size
