"""What a backfill reports: counts, and in a dry run the keys of rows that would change; no other values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slotlake.infra.reports import Report, TableCopy

KEYS_SHOWN_MAX = 100


@dataclass(frozen=True)
class TableBackfilled(Report):
    """One table read again.

    Attributes:
        rows: read from the source; in a dry run, that would be.
        inserted, changed, deleted: keys of the lake; None where the whole table was replaced uncompared.
        taken: how many rows the lake loses for it, also those that come again; a key may stand there twice.
            None for a whole table.
        keys: of a dry run: ``change`` (insert, update, delete) and ``key`` of the first hundred such rows.
    """

    table: str
    lake_table: str
    rows: int
    inserted: int | None = None
    changed: int | None = None
    deleted: int | None = None
    taken: int | None = None
    keys: list[dict[str, Any]] = field(default_factory=list)

    @property
    def changes(self) -> int:
        """How many rows of the lake's table were inserted, deleted or changed."""
        if self.inserted is None:
            return self.rows
        return self.inserted + (self.changed or 0) + (self.deleted or 0)


def reports_of(copies: Sequence[TableCopy]) -> list[TableBackfilled]:
    """Return the reports of whole tables that were copied."""
    return [TableBackfilled(copy.table, copy.lake_table, copy.rows) for copy in copies]


@dataclass(frozen=True)
class BackfillReport(Report):
    """Tables, or some rows of them, read again from the source at an exact LSN.

    Attributes:
        table, lake_table: the names of all tables, separated by commas.
        where: the condition that chose the rows; None for whole tables.
        inserted, changed, deleted, taken: of all tables; None where one was replaced uncompared.
    """

    table: str
    lake_table: str
    lsn: str
    rows: int
    seconds: float
    dry_run: bool = False
    where: str | None = None
    inserted: int | None = None
    changed: int | None = None
    deleted: int | None = None
    taken: int | None = None
    tables: list[TableBackfilled] = field(default_factory=list)

    @classmethod
    def of(
        cls, tables: list[TableBackfilled], lsn: str, seconds: float, *, dry_run: bool, where: str | None
    ) -> BackfillReport:
        """Sum the reports of several tables.

        Args:
            lsn: the LSN at which they were read.
            seconds: how long it took.
            dry_run: nothing was written.
            where: the condition that chose rows; None for whole tables.
        """

        def total(name: str) -> int | None:
            counts = [getattr(table, name) for table in tables]
            return None if None in counts else sum(counts)

        return cls(
            table=", ".join(table.table for table in tables),
            lake_table=", ".join(table.lake_table for table in tables),
            lsn=lsn,
            rows=sum(table.rows for table in tables),
            seconds=seconds,
            dry_run=dry_run,
            where=where,
            inserted=total("inserted"),
            changed=total("changed"),
            deleted=total("deleted"),
            taken=total("taken"),
            tables=tables,
        )
