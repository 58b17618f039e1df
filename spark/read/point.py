"""Reads the lake at one cut: every table at the same LSN of the source.

All pointers are taken in one catalog query, then each table is pinned to a snapshot: its newest one at or
before the cut's position.  Whatever is published meanwhile changes nothing for this reader.  Rows are read
without Spark (spark/read/scan.py); analysts' SQL goes through it (spark/read/query.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from slotlake.spark.catalog.base import Loaded, load
from slotlake.spark.catalog.listing import Listing
from slotlake.spark.catalog.open import read_listing
from slotlake.spark.fold.conflicts import Conflicts
from slotlake.spark.history.columns import HOLDS, derived_column
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName, lake_table, parse_postgres_name
from slotlake.spark.publish import aside
from slotlake.spark.publish.aside import Name as AsideName
from slotlake.spark.publish.derived_tables import derived_table_names
from slotlake.spark.publish.lives import Life
from slotlake.spark.publish.points import choose
from slotlake.spark.publish.position import commits_name, position_of, require_known_format
from slotlake.spark.read import newest
from slotlake.spark.read.columns import ScanColumn, as_text, scan_columns_of
from slotlake.spark.read.newest import Mirrors
from slotlake.spark.read.pinned import Pinned, PinnedTables
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables import soft_deletes
from slotlake.spark.tables.schema import SCHEMA_PROPERTY, LakeColumn, TableSchema

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

    from slotlake.spark.read.scan import Probe

    FilesOf = Callable[[Mapping[str, int], Sequence[LakeColumn]], tuple[BooleanExpression, Probe]]


class ReadPoint:
    """All tables of a pipeline's namespaces, pinned. Its catalog pointers were read in one query.

    Attributes:
        position: the source LSN that all tables stand at.
        listing: the pointers as they were read; None if some tables are pinned by others.
    """

    def __init__(
        self,
        lake: LakeSettings,
        position: int,
        pinned: Mapping[LakeName, Pinned],
        listing: Listing | None = None,
    ) -> None:
        self.lake = lake
        self.position = position
        self.pinned = pinned
        self.listing = listing

    @classmethod
    def latest(cls, lake: LakeSettings) -> ReadPoint:
        """The newest consistency point.

        Raises:
            LakeError: the lake cannot be reached, or holds nothing yet.
        """
        return cls.of(lake, None)

    @classmethod
    def at(cls, lake: LakeSettings, lsn: int) -> ReadPoint:
        """The newest kept consistency point at or before ``lsn``.

        Raises:
            LakeError: the lake has not reached it, or keeps nothing that old.
        """
        return cls.of(lake, lsn)

    @classmethod
    def of(cls, lake: LakeSettings, at: int | datetime | None) -> ReadPoint:
        """The newest kept point at or before an LSN, or a moment of the source's clock; None: the newest.

        Raises:
            LakeError: it is in the future, or older than what the lake keeps.
        """
        listing, name = read_listing(lake), commits_name(lake.namespace)
        commits = load(listing.pointers, name).metadata
        require_known_format(commits, name)
        position = position_of(commits, name) if at is None else choose(commits, name, at)
        return cls(lake, position, PinnedTables(listing, position), listing)

    def tables(self) -> list[TableSchema]:
        """The tables in this cut, by source name."""
        return list(self.all_mirrors.tables)

    def mirrors(self) -> Mapping[LakeName, TableSchema]:
        """The tables in this cut, by their names in the lake."""
        return self.all_mirrors.shapes

    @cached_property
    def all_mirrors(self) -> Mirrors:
        """The tables in this cut; the same object as in the cut before, if all have the same shapes."""
        return newest.mirrors(self.lake, self.pinned, self.position, self.listing)

    def aside_now(self) -> dict[aside.Name, aside.Aside]:
        """The tables that are set aside in the catalog's present record, whatever the point is."""
        return aside.entries_in(
            catalog_metadata.load_top(self.pinned[commits_name(self.lake.namespace)].pointer)
        )

    @cached_property
    def aside(self) -> dict[aside.Name, aside.Aside]:
        """The tables that are set aside, by the source's schema and name."""
        return aside.entries_in(
            catalog_metadata.load_top(self.pinned[commits_name(self.lake.namespace)].location)
        )

    @cached_property
    def lives(self) -> Mapping[AsideName, Life]:
        """The lives of the tables that are not simply followed, by the source's schema and name."""
        commits = catalog_metadata.load_top(self.pinned[commits_name(self.lake.namespace)].location)
        return aside.Record.of(commits).lives

    def followed(self) -> list[TableSchema]:
        """The tables in this cut that are not set aside."""
        if not self.aside:
            return self.tables()
        return [table for table in self.tables() if (table.schema, table.table) not in self.aside]

    def schema(self, table: str) -> TableSchema:
        """Of a table as PostgreSQL writes it.

        Raises:
            KeyError: the cut has no such table.
        """
        return self._schema(self.find(table))

    def snapshot_id(self, table: str) -> int:
        """The snapshot that the table is pinned at.

        Raises:
            KeyError: the cut has no such table.
        """
        return self._snapshot_id(self.find(table))

    def count(self, table: str) -> int:
        """Rows of a table, from the metadata and the manifests.

        Raises:
            KeyError: the cut has no such table.
        """
        from slotlake.spark.maintenance.table_files import count_rows

        return count_rows(self.pinned[self.find(table)].snapshot)

    def conflicts(self, table: str) -> Conflicts:
        """What changes of a table met that the source did not have, since it was copied.

        Raises:
            KeyError: the cut has no such table.
        """
        metadata = self.pinned[self.find(table)].metadata
        return Conflicts.total_in(map(catalog_metadata.summary, catalog_metadata.ancestry(metadata)))

    def rows(self, table: str, columns: Sequence[str] | None = None) -> Iterator[tuple[str | None, ...]]:
        """Rows as canonical PostgreSQL text, in no particular order; memory is bounded.

        Raises:
            KeyError: no such table, or column.
        """
        every = self.text_batches(table, columns)
        return (row for batch in every for row in zip(*(c.to_pylist() for c in batch.columns), strict=True))

    def text_batches(self, table: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """As :meth:`rows`, in Arrow string columns named by the source's columns."""
        typed, printed = self.batches_to_print(table, columns)
        return map(printed, typed)

    def batches_to_print(
        self, table: str, columns: Sequence[str] | None = None
    ) -> tuple[Iterator[pa.RecordBatch], Callable[[pa.RecordBatch], pa.RecordBatch]]:
        """As :meth:`text_batches`: the rows as they are read, and what makes texts of a batch of them."""
        chosen, typed = self.typed_batches(table, columns)
        return typed, partial(as_text, chosen=chosen)

    def arrow_batches(self, table: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Typed columns by source name, each that may be inexact followed by its ``<name>__exact`` text.

        Raises:
            KeyError: no such table, or column.
        """
        return self.typed_batches(table, columns)[1]

    def commits(self, above: int | None = None, *, pins: bool = True) -> list[dict[str, Any]]:
        """The consistency points up to this one, oldest first, as rows of `commits`.

        Args:
            above: only those above this position.
            pins: with the column ``tables``, which is most of a row.
        """
        from slotlake.spark.publish.commits import read_points

        name = commits_name(self.lake.namespace)
        return read_points(self.pinned[name].location, self._snapshot_id(name), above, pins=pins)

    def newest_times(self) -> tuple[datetime | None, datetime | None]:
        """When the newest point's last transaction was committed, if it has one; when it was published."""
        from slotlake.spark.publish.commits import newest_times

        name = commits_name(self.lake.namespace)
        return newest_times(Loaded(name, self.pinned[name].location, self.pinned[name].metadata))

    def find(self, table: str) -> LakeName:
        """The lake table of a name as PostgreSQL writes it.

        Raises:
            KeyError: the cut has no such table.
        """
        source = parse_postgres_name(table)
        name = lake_table(self.lake.namespace, *source)
        if name not in self.pinned or self.pinned[name].snapshot is None:
            raise KeyError(f"the lake has no table {table}{self._why_absent(name, source)}")
        pinned = self.pinned[name]
        if SCHEMA_PROPERTY not in pinned.properties or (pinned.shape.schema, pinned.shape.table) != source:
            raise KeyError(f"the lake has no table {table}: {name} is another one")
        return name

    def _why_absent(self, name: LakeName, source: AsideName) -> str:
        """Why the lake lacks a table that it had; "" if it never had it."""
        if source in self.aside:
            return f": it is set aside: {self.aside[source].reason}; {self.aside[source].way_out}"
        from slotlake.spark.publish.absent import GONE
        from slotlake.spark.publish.commits import pins_of

        commits = self.pinned[commits_name(self.lake.namespace)]
        pins = pins_of(Loaded(commits.name, commits.location, commits.metadata))
        return f": {name} {GONE}" if name in pins else ""

    def derived_tables(self, table: str) -> dict[str, LakeName]:
        """The tables that were kept beside a mirror at the cut, by mode.

        Raises:
            KeyError: the cut has no such table.
        """
        return self.derived_tables_of(self.find(table))

    def derived_tables_of(self, mirror: LakeName) -> dict[str, LakeName]:
        """As :meth:`derived_tables`, of a mirror by its name in the lake."""
        names = derived_table_names(self.pinned, mirror)
        return {mode: name for mode, name in names.items() if self.pinned[name].snapshot is not None}

    def _schema(self, name: LakeName) -> TableSchema:
        return self.pinned[name].shape

    def _snapshot_id(self, name: LakeName) -> int:
        return int((self.pinned[name].snapshot or {})["snapshot-id"])

    def open_versions(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch] | None:
        """The versions that hold at the cut, of a table with a history; as :meth:`text_batches`.

        Raises:
            KeyError: no such table, or column.
        """
        from slotlake.spark.read.scan import scan

        name = self.derived_tables(table).get("history")
        if name is None:
            return None
        schema = self._schema(self.find(table))
        by_name = {column.name: derived_column(column) for column in schema.live}
        chosen, scan_columns = scan_columns_of(
            self.pinned[name].field_ids, [by_name[column] for column in columns]
        )
        typed = scan(self.pinned[name].location, self._snapshot_id(name), scan_columns, HOLDS)
        return (as_text(batch, chosen) for batch in typed)

    def typed_batches(
        self, table: str, columns: Sequence[str] | None, files: FilesOf | None = None
    ) -> tuple[list[tuple[LakeColumn, bool]], Iterator[pa.RecordBatch]]:
        """The columns to read, whether each has a companion, and the batches that have them.

        Args:
            files: which of the files are read (further arguments of `scan`); None: all.
        """
        from slotlake.spark.read.scan import scan

        name = self.find(table)
        ids = self.pinned[name].field_ids
        schema = self._schema(name)
        if schema.soft_deletes:
            return self._rows_by_state(name, columns, deleted=False)
        present = [column for column in schema.live if column.lake_name in ids]
        if columns is not None:
            by_name = {column.name: column for column in present}
            present = [by_name[column] for column in columns]
        chosen, scan_columns = scan_columns_of(ids, present)
        of_files = () if files is None else files(ids, present)
        return chosen, scan(self.pinned[name].location, self._snapshot_id(name), scan_columns, *of_files)

    def marked_rows(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch] | None:
        """The rows that the source deleted and a mirror still has, marked; as :meth:`text_batches`.

        Returns:
            None if the mirror does not keep such rows.

        Raises:
            KeyError: no such table, or column.
        """
        name = self.find(table)
        if not self._schema(name).soft_deletes:
            return None
        chosen, typed = self._rows_by_state(name, columns, deleted=True)
        return (as_text(batch, chosen) for batch in typed)

    def _rows_by_state(
        self, name: LakeName, columns: Sequence[str] | None, *, deleted: bool
    ) -> tuple[list[tuple[LakeColumn, bool]], Iterator[pa.RecordBatch]]:
        """As `_chosen`, of a mirror that keeps deleted rows: only these, or only the others."""
        from slotlake.spark.read.scan import scan

        ids, schema = self.pinned[name].field_ids, self._schema(name)
        by_name = {column.name: column for column in schema.live if column.lake_name in ids}
        names = list(by_name) if columns is None else columns
        chosen, scan_columns = scan_columns_of(ids, [by_name[column] for column in names])
        scan_columns.append(ScanColumn(ids[soft_deletes.DELETED], pa.field(soft_deletes.DELETED, pa.bool_())))
        batches = scan(self.pinned[name].location, self._snapshot_id(name), scan_columns)
        return chosen, (soft_deletes.with_state(batch, deleted) for batch in batches)
