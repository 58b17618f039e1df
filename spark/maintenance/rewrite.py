"""Keeps a table quick to read and small: rewrites what many small batches made of it, lets go of the past.

Each step is whole on its own and changes no row: small files are packed together, files with many deleted
rows are written without them, manifests are packed, then snapshots and files go
(spark/maintenance/expiry.py).  What Spark commits here is on ``main`` at once, a snapshot of operation
``replace`` that says no position: all that asks for a point's snapshot looks below it, all that reads the
newest rows reads it.

A table with something staged is left alone: the batch in ``stage`` builds on main as it is.

How much is rewritten: points that are kept hold on to the files that a rewrite replaces, so a table rewritten
too eagerly is stored several times over.  Hence files have an eighth of the table's size (not above the
target), only those below half of that are packed, and a file is written anew for its deleted rows when these
are a tenth of it and what kept points hold beside the table stays below three quarters of the table; or when
they are three tenths, whatever is held: reading would suffer more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession

from slotlake.decoder.failpoints import reach
from slotlake.spark.catalog.base import Loaded, load_one
from slotlake.spark.catalog.open import Catalog, open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.expiry import Grace, Removed, expire, remove_files
from slotlake.spark.maintenance.table_files import DataFile, Partition, TableFiles
from slotlake.spark.merge.run import run
from slotlake.spark.merge.sizes import cores_of
from slotlake.spark.names import LakeName, belongs, literal
from slotlake.spark.publish.commits import commits_name
from slotlake.spark.publish.commits_trim import trim
from slotlake.spark.publish.past import all_snapshots
from slotlake.spark.publish.place import remove_ranges
from slotlake.spark.publish.swap import require_owner
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.layout import sort_order_id
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import PIPELINE_PROPERTY

_MIB = 1024 * 1024
_CORES = 4
_TARGET_BYTES_MIN = 4 * _MIB
_FILES_OF_A_TABLE = 8
_SMALL_SHARE = 0.5
_SMALL_FILES_MIN = 5
_DELETED_SHARE, _DELETED_SHARE_MAX = 0.1, 0.3
_OLD_FILES_SHARE_MAX = 0.75
_MANIFESTS_MAX = 8
_LIMITED = "max-files-to-rewrite"
# From writing the files of a row of `commits` to its publication, with room.
_PUBLISHING_SECONDS = 300.0


@dataclass(frozen=True)
class Care:
    """How a lake is maintained.

    Attributes:
        target_bytes: of a large table's data files.
        rewrite_bytes_max: so much of a table is rewritten in one go by up to `_CORES` cores, and as much more
            as there are more of them; the rest next time.
        rewrite_layout: a table with files of an earlier layout is rewritten whole.
    """

    grace: Grace
    target_bytes: int = 128 * _MIB
    rewrite_bytes_max: int = 8 * 1024 * _MIB
    rewrite_layout: bool = False


@dataclass(frozen=True)
class Maintained:
    """What was done to a table: counts, and bytes of removed files.

    Attributes:
        staged: a batch is being applied to it; nothing was done.
    """

    table: str
    staged: bool = False
    rewritten_files: int = 0
    written_files: int = 0
    expired_snapshots: int = 0
    removed: Removed = field(default_factory=Removed)


def tables_to_maintain(lake: LakeSettings, pipeline: str) -> list[LakeName]:
    """The pipeline's tables in the lake, `commits` last.

    Raises:
        LakeError: the catalog cannot be reached.
    """
    with open_catalog(lake) as catalog:
        names = [name for name in catalog.names() if belongs(name.namespace, lake.namespace)]
        pointers = catalog.pointers_of(names)
        tops = {name: catalog_metadata.load_top(location) for name, location in pointers.items()}
    own_tables = [name for name, top in tops.items() if top["properties"].get(PIPELINE_PROPERTY) == pipeline]
    commits = commits_name(lake.namespace)
    return sorted(own_tables, key=lambda name: (name == commits, name))


def maintain_table(
    session: SparkSession, lake: LakeSettings, name: LakeName, pipeline: str, care: Care
) -> Maintained:
    """Rewrite, expire and remove files of a table, as far as needed.

    Args:
        session: runs the rewrites.
        lake: the lake.
        name: the table.
        pipeline: the pipeline that the table must belong to.
        care: sizes and times.

    Raises:
        LakeError: Spark failed, the table was changed meanwhile, or a file of it cannot be read. Nothing that
            is needed is lost, whichever step it was.
    """
    files = TableFiles()
    remove_ranges(lake, name)  # a copy that was ended right after its publication left them
    with open_catalog(lake) as catalog:
        table = _load(catalog, name, pipeline)
        if is_staged(table):
            return Maintained(str(name), staged=True)
        if name == commits_name(lake.namespace) and trim(catalog, table):
            table = _load(catalog, name, pipeline)
        before = table.metadata
        present = {file.path for file in files.data_files(catalog_metadata.head(before))}
        _rewrite(session, lake, table, files, care)
        reach("maintain.rewritten")
        catalog.bring(name)
        table = _load(catalog, name, pipeline)
        after = {file.path for file in files.data_files(catalog_metadata.head(table.metadata))}
        referenced = files.referenced_files(
            [*before.get("snapshots", ()), *table.metadata.get("snapshots", ())]
        )
        grace = care.grace if name != commits_name(lake.namespace) else _of_commits(care.grace)
        snapshots = expire(catalog, table, grace)
        reach("maintain.expired")
        table = _load(catalog, name, pipeline)
        needed = catalog.files_of(name), catalog.view_locations(name)
        removed = remove_files(table, referenced, files, grace, *needed)
    return Maintained(str(name), False, len(present - after), len(after - present), snapshots, removed)


def _of_commits(grace: Grace) -> Grace:
    """Its snapshots leave with each publication, and no statement is ever long at work on it."""
    return Grace(grace.unused, min(grace.orphan, max(grace.unused, _PUBLISHING_SECONDS)))


def _load(catalog: Catalog, name: LakeName, pipeline: str) -> Loaded:
    table = load_one(catalog, name)
    require_owner(table, pipeline)
    return table


def is_staged(table: Loaded) -> bool:
    """Return whether a batch is being applied to a table."""
    return catalog_metadata.is_staged(table.metadata)


def _rewrite(session: SparkSession, lake: LakeSettings, table: Loaded, files: TableFiles, care: Care) -> None:
    head = catalog_metadata.head(table.metadata)
    present = files.data_files(head)
    old_files = files.referenced_files(all_snapshots(table.metadata))
    for file in present:
        old_files.pop(file.path, None)
    if care.rewrite_layout and has_earlier_layout(table.metadata, present):
        options: Mapping[str, str] | None = {"rewrite-all": "true", **_sizes(present, care)}
    else:
        options = plan(present, sum(old_files.values()), care)
        if options is not None and _LIMITED in options and (cores := cores_of(session)) > _CORES:
            more = replace(care, rewrite_bytes_max=care.rewrite_bytes_max * cores // _CORES)
            options = plan(present, sum(old_files.values()), more)
    if options is not None:
        rewrite_files(session, lake, table, options)
    remove_useless_deletes(session, lake, table, files)
    if options is not None or files.manifests(head) > _MANIFESTS_MAX:
        target = literal(table.name.sql(lake.catalog))
        call = f"CALL {lake.catalog}.system.rewrite_manifests(table => {target}, use_caching => false)"
        run(session, table, call)


def rewrite_files(
    session: SparkSession, lake: LakeSettings, table: Loaded, options: Mapping[str, str]
) -> None:
    """Write files of a table anew, without their deleted rows: one snapshot of operation ``replace``.

    Args:
        session: does so.
        lake: the lake.
        table: the table.
        options: of Iceberg's ``rewrite_data_files``; they say which files.

    Raises:
        LakeError: Spark failed, or the table was changed meanwhile; the table is as it was.
    """
    target = literal(table.name.sql(lake.catalog))
    listed = ", ".join(f"{literal(key)}, {literal(value)}" for key, value in options.items())
    call = f"CALL {lake.catalog}.system.rewrite_data_files(table => {target}, options => map({listed}))"
    run(session, table, call)


def remove_useless_deletes(
    session: SparkSession, lake: LakeSettings, table: Loaded, files: TableFiles
) -> None:
    """Remove position deletes of data files that were rewritten; deletion vectors leave with their file.

    Readers ignore them, but they stay otherwise, and the snapshot's totals count them.

    Args:
        session: does so.
        lake: the lake.
        table: the table.
        files: reads which there are.

    Raises:
        LakeError: Spark failed, or the table was changed meanwhile.
    """
    with open_catalog(lake) as catalog:
        head = catalog_metadata.head(load_one(catalog, table.name).metadata)
    if files.has_useless_deletes(head):
        target = literal(table.name.sql(lake.catalog))
        options = "options => map('rewrite-all', 'true')"
        call = f"CALL {lake.catalog}.system.rewrite_position_delete_files(table => {target}, {options})"
        run(session, table, call)


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


def _sizes(files: Sequence[DataFile], care: Care) -> dict[str, str]:
    live = sum(int(file.size * (1 - file.deleted_share)) for file in files)
    target = max(_TARGET_BYTES_MIN, min(care.target_bytes, live // _FILES_OF_A_TABLE))
    return {"target-file-size-bytes": str(target)}


def plan(files: Sequence[DataFile], old_bytes: int, care: Care) -> Mapping[str, str] | None:
    """Options of Iceberg's ``rewrite_data_files``; None if there is nothing worth it.

    Args:
        files: of the table as it is now.
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
        options[_LIMITED] = str(_how_many_fit(list(to_rewrite.values()), care.rewrite_bytes_max))
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
