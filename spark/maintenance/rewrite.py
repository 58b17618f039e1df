"""Keeps a table quick to read and small: rewrites what many small batches made of it, lets go of the past.

Each step is whole on its own and changes no row: small files are packed together, files with many deleted
rows are written without them, manifests are packed, then snapshots and files go
(spark/maintenance/expiry.py).  What Spark commits here is on ``main`` at once, a snapshot of operation
``replace`` that says no position: all that asks for a point's snapshot looks below it, all that reads the
newest rows reads it.

A table with something staged is left alone: the batch in ``stage`` builds on main as it is.  What is long is
done while batches go on (spark/maintenance/turns.py): files are read and written, and looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession

from slotlake.decoder.errors import DamagedError
from slotlake.decoder.failpoints import reach
from slotlake.spark.catalog.base import Loaded, load_one
from slotlake.spark.catalog.open import Catalog, open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.expiry import (
    Grace,
    Removed,
    expire,
    remove_files,
    still_unneeded,
    unneeded_files,
)
from slotlake.spark.maintenance.plan import CORES, LIMITED, Care, has_earlier_layout, plan, sizes
from slotlake.spark.maintenance.table_files import TableFiles
from slotlake.spark.maintenance.turns import Turns, owned
from slotlake.spark.merge.run import run
from slotlake.spark.merge.sizes import cores_of
from slotlake.spark.names import LakeName, belongs, literal
from slotlake.spark.publish.commits import commits_name
from slotlake.spark.publish.commits_trim import trim
from slotlake.spark.publish.past import all_snapshots
from slotlake.spark.publish.place import remove_ranges
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import PIPELINE_PROPERTY

_MIB = 1024 * 1024
_MANIFESTS_MAX = 8
# From writing the files of a row of `commits` to its publication, with room.
_PUBLISHING_SECONDS = 300.0
# Of files that batches change all the time, so much is rewritten while a batch waits: some seconds.
_TURN_BYTES = 256 * _MIB
_ALONE = Turns()


@dataclass(frozen=True)
class Maintained:
    """What was done to a table: counts, and bytes of removed files.

    Attributes:
        staged: a batch is being applied to it; nothing was done, or not all.
        given_up: files that were rewritten in vain, because batches changed them meanwhile.
        damaged: a list of files of a point of the past that cannot be read, so none was removed; "": none.
    """

    table: str
    staged: bool = False
    rewritten_files: int = 0
    written_files: int = 0
    expired_snapshots: int = 0
    removed: Removed = field(default_factory=Removed)
    given_up: int = 0
    damaged: str = ""


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
    opened: Callable[[], SparkSession],
    lake: LakeSettings,
    name: LakeName,
    pipeline: str,
    care: Care,
    turns: Turns = _ALONE,
) -> Maintained:
    """Rewrite, expire and remove files of a table, as far as needed.

    Args:
        opened: gives the session for the rewrites; it opens Spark if nothing has needed it before.
        turns: what is done while batches go on, and how to be alone for the rest.

    Raises:
        LakeError: Spark failed, the table was changed meanwhile, or a file of it cannot be read. Nothing that
            is needed is lost, whichever step it was.
    """
    return _Maintenance(opened, lake, name, pipeline, care, turns).run()


@dataclass
class _Maintenance:
    """The maintenance of one table."""

    opened: Callable[[], SparkSession]
    lake: LakeSettings
    name: LakeName
    pipeline: str
    care: Care
    turns: Turns
    files: TableFiles = field(default_factory=TableFiles)
    rewritten: bool = False
    given_up: int = 0
    damaged: str = ""

    def run(self) -> Maintained:
        with self._turn() as turn:
            if turn is None:
                return Maintained(str(self.name), staged=True)
            remove_ranges(self.lake, self.name)  # a copy that was ended after its publication left them
            before = self._trimmed(*turn)
        if not self._rewrite(before):
            return Maintained(str(self.name), staged=True)
        with self._turn() as turn:
            if turn is None:
                return Maintained(str(self.name), staged=True)
            catalog, table = turn
            self._rewrite_metadata(table)
            reach("maintain.rewritten")
            catalog.bring(self.name)
            table = owned(catalog, self.name, self.pipeline)
            after = table.metadata
            referenced = self._referenced(after.get("snapshots", ()))
            snapshots = expire(catalog, table, self._grace)
            reach("maintain.expired")
        removed = self._remove(referenced)
        files = self._paths(before.metadata), self._paths(after)
        rewritten, written = len(files[0] - files[1]), len(files[1] - files[0])
        counts = rewritten, written, snapshots, removed, self.given_up
        return Maintained(str(self.name), False, *counts, self.damaged)

    def _turn(self) -> AbstractContextManager[tuple[Catalog, Loaded] | None]:
        return self.turns.table(self.lake, self.name, self.pipeline)

    @property
    def _is_commits(self) -> bool:
        return self.name == commits_name(self.lake.namespace)

    @property
    def _grace(self) -> Grace:
        grace = self.turns.grace(self.care.grace)  # asked late: somebody may have begun to read meanwhile
        return _of_commits(grace) if self._is_commits else grace

    def _trimmed(self, catalog: Catalog, table: Loaded) -> Loaded:
        present = catalog.in_present(table.metadata)
        if present is not table.metadata:
            catalog.move([catalog.prepared(table, present)])
            table = owned(catalog, self.name, self.pipeline)
        if self._is_commits and trim(catalog, table):
            return owned(catalog, self.name, self.pipeline)
        return table

    def _rewrite(self, table: Loaded) -> bool:
        """Rewrite what is worth it; return whether something staged was never in the way."""
        options = self._options(table, self.care)
        if options is None:
            return True
        self.rewritten = True
        rewritten = self.turns.rewrite(self.opened(), self.lake, table, options)
        if rewritten is None:
            return self._rewrite_in_place(self.care)
        with closing(rewritten):
            reach("maintain.written")
            with self._turn() as turn:
                if turn is None:
                    return False
                self.given_up = rewritten.commit(*turn)
        return not self.given_up or self._rewrite_in_short_turns()

    def _rewrite_in_place(self, care: Care) -> bool:
        with self._turn() as turn:
            if turn is None:
                return False
            options = self._options(turn[1], care)
            if options is not None:
                rewrite_files(self.opened(), self.lake, turn[1], options)
            return True

    def _rewrite_in_short_turns(self) -> bool:
        """Rewrite files that batches change all the time, a few in each turn."""
        share = min(_TURN_BYTES, self.care.rewrite_bytes_max)
        care = replace(self.care, rewrite_bytes_max=share)
        for _ in range(-(-self.care.rewrite_bytes_max // share)):
            with open_catalog(self.lake) as catalog:
                table = owned(catalog, self.name, self.pipeline)
            if self._options(table, care) is None:
                break
            if not self._rewrite_in_place(care):
                return False
            with open_catalog(self.lake) as catalog:
                after = owned(catalog, self.name, self.pipeline)
            if self._paths(table.metadata) <= self._paths(after.metadata):
                break  # what the plan names is not what Iceberg takes
        return True

    def _options(self, table: Loaded, care: Care) -> Mapping[str, str] | None:
        present = self.files.data_files(catalog_metadata.head(table.metadata))
        if care.rewrite_layout and has_earlier_layout(table.metadata, present):
            return {"rewrite-all": "true", **sizes(present, care)}
        old_files = self._referenced(all_snapshots(table.metadata)) or {}
        for file in present:
            old_files.pop(file.path, None)
        options = plan(present, sum(old_files.values()), care)
        if options is not None and LIMITED in options and (cores := cores_of(self.opened())) > CORES:
            more = replace(care, rewrite_bytes_max=care.rewrite_bytes_max * cores // CORES)
            options = plan(present, sum(old_files.values()), more)
        return options

    def _referenced(self, snapshots: Iterable[Metadata]) -> dict[str, int] | None:
        """The files of snapshots → bytes; None: a list of them is damaged, which newer points do not need."""
        try:
            return self.files.referenced_files(snapshots)
        except DamagedError as error:
            self.damaged = error.where
            return None

    def _rewrite_metadata(self, table: Loaded) -> None:
        """Remove position deletes of files that are gone, and pack manifests."""
        remove_useless_deletes(self.opened, self.lake, table, self.files)
        if self.rewritten or self.files.manifests(catalog_metadata.head(table.metadata)) > _MANIFESTS_MAX:
            target = literal(table.name.sql(self.lake.catalog))
            call = (
                f"CALL {self.lake.catalog}.system.rewrite_manifests(table => {target}, use_caching => false)"
            )
            run(self.opened(), table, call)

    def _paths(self, metadata: Metadata) -> set[str]:
        return {file.path for file in self.files.data_files(catalog_metadata.head(metadata))}

    def _remove(self, referenced: Collection[str] | None) -> Removed:
        """Remove what nothing needs: looked for while batches go on, and decided while none does.

        Nothing goes before it is known what the kept points need.
        """
        if referenced is None:
            return Removed()
        with open_catalog(self.lake) as catalog:
            table = owned(catalog, self.name, self.pipeline)
            needed = catalog.files_of(self.name), catalog.view_locations(self.name)
        candidates = unneeded_files(table, referenced, self.files, self._grace, *needed)
        if not candidates:
            return Removed()
        with self.turns.alone(), open_catalog(self.lake) as catalog:
            table = owned(catalog, self.name, self.pipeline)
            needed = catalog.files_of(self.name), catalog.view_locations(self.name)
            candidates = still_unneeded(candidates, table, self.files, *needed)
        return remove_files(candidates)


def _of_commits(grace: Grace) -> Grace:
    """Its snapshots leave with each publication, and no statement is ever long at work on it."""
    return Grace(grace.unused, min(grace.orphan, max(grace.unused, _PUBLISHING_SECONDS)))


def rewrite_files(
    session: SparkSession, lake: LakeSettings, table: Loaded, options: Mapping[str, str]
) -> None:
    """Write files of a table anew, without their deleted rows: one snapshot of operation ``replace``.

    Args:
        options: of Iceberg's ``rewrite_data_files``; they say which files.

    Raises:
        LakeError: Spark failed, or the table was changed meanwhile; the table is as it was.
    """
    target = literal(table.name.sql(lake.catalog))
    listed = ", ".join(f"{literal(key)}, {literal(value)}" for key, value in options.items())
    call = f"CALL {lake.catalog}.system.rewrite_data_files(table => {target}, options => map({listed}))"
    run(session, table, call)


def remove_useless_deletes(
    opened: Callable[[], SparkSession], lake: LakeSettings, table: Loaded, files: TableFiles
) -> None:
    """Remove position deletes of data files that were rewritten; deletion vectors leave with their file.

    Readers ignore them, but they stay otherwise, and the snapshot's totals count them.

    Args:
        opened: gives the session that does so, if there are some.

    Raises:
        LakeError: Spark failed, or the table was changed meanwhile.
    """
    with open_catalog(lake) as catalog:
        head = catalog_metadata.head(load_one(catalog, table.name).metadata)
    if files.has_useless_deletes(head):
        target = literal(table.name.sql(lake.catalog))
        options = "options => map('rewrite-all', 'true')"
        call = f"CALL {lake.catalog}.system.rewrite_position_delete_files(table => {target}, {options})"
        run(opened(), table, call)
