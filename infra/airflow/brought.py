"""What batches brought to the lake, for Airflow's asset events: counts, positions, times and table names.

It holds no row value.  Only batches count: a copy of a table is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotlake.infra.pipeline import Pipeline
    from slotlake.infra.reports import SyncReport


@dataclass
class Brought:
    """What one batch or several batches brought.

    Attributes:
        batch: the newest with transactions.
        tables: source table, as PostgreSQL writes it → changed rows; a TRUNCATE counts as one.
        oldest_commit: when the oldest transaction was committed, by the source's clock (ISO 8601).
        newest_commit: the same of the newest.
    """

    start_lsn: str
    end_lsn: str
    batch: str | None = None
    transactions: int = 0
    tables: dict[str, int] = field(default_factory=dict)
    oldest_commit: str | None = None
    newest_commit: str | None = None

    @classmethod
    def by_syncs(cls, reports: Iterable[SyncReport], start_lsn: str, end_lsn: str) -> Brought:
        """Return what micro-batches brought together.

        Args:
            reports: of the micro-batches, in order.
            start_lsn: the lake's position before the first one.
            end_lsn: its position after the last one.
        """
        brought = cls(start_lsn, end_lsn)
        for report in reports:
            brought.add(report)
        return brought

    @classmethod
    def by_batch(cls, pipeline: Pipeline, name: str) -> Brought:
        """Return what a batch of the change log brings, without the tables that are set aside.

        Args:
            pipeline: whose change log it is in.
        """
        from slotlake.infra.sync.batch_steps import batch_named
        from slotlake.spark.names import postgres_name
        from slotlake.spark.publish import sidecar
        from slotlake.spark.publish.publication import touched_tables

        batch = batch_named(pipeline.file, name)
        tables: dict[str, int] = {}
        for relations in touched_tables(pipeline.lake, batch, sidecar.read(batch)).values():
            for relation in relations:
                table = postgres_name(relation.schema, relation.table)
                tables[table] = tables.get(table, 0) + relation.rows
        return cls(
            start_lsn=batch.manifest["start_lsn"],
            end_lsn=batch.manifest["end_lsn"],
            batch=name,
            transactions=batch.transactions,
            tables=tables,
            oldest_commit=batch.manifest.get("first_commit_time"),
            newest_commit=batch.manifest.get("last_commit_time"),
        )

    def add(self, report: SyncReport) -> None:
        """Add what a later micro-batch brought, but not its positions."""
        if report.transactions:
            self.batch = report.batch
        self.transactions += report.transactions
        for table, changes in report.tables.items():
            if changes:
                self.tables[table] = self.tables.get(table, 0) + changes
        oldest = [time for time in (self.oldest_commit, report.oldest_commit) if time]
        newest = [time for time in (self.newest_commit, report.newest_commit) if time]
        self.oldest_commit = min(oldest, key=datetime.fromisoformat, default=None)
        self.newest_commit = max(newest, key=datetime.fromisoformat, default=None)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return asdict(self)
