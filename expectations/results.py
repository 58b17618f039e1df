"""What a reconciliation found: plain frozen records that turn into JSON.

The keys of differing rows are in here; that is the purpose.  They belong into the report, its JSON and
the Data Docs, never into a log line or an XCom: use counts there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from slotlake.decoder.errors import DamagedError, LockedError, UnreadableRowsError

MISSING = "missing in lake"
EXTRA = "extra in lake"
DIFFERENT = "different"
DUPLICATED = "duplicated in lake"
NO_COLUMN = "column missing in lake"
NO_TABLE = "table missing in lake"
HISTORY = "different in the open versions of its history"
MARKED = "marked as deleted in lake, and not deleted"
ASIDE = "set aside, and not followed"
LOCKED = "locked at the source, and not compared"
REWRITTEN = "rewritten at the source meanwhile, and not compared"
UNREADABLE = "not readable, and not compared"
NOT_COMPARED = frozenset((LOCKED, REWRITTEN))  # now: the next verification may
# What keeps one table from being compared, and no other.
TABLES_TROUBLE = (LockedError, UnreadableRowsError, DamagedError)
FULL, CHANGED, ROLLING = "full", "changed", "rolling"
SCOPES = (FULL, CHANGED, ROLLING)
KINDS = (
    *(MISSING, EXTRA, DIFFERENT, DUPLICATED, NO_COLUMN, NO_TABLE, HISTORY, MARKED),
    *(ASIDE, LOCKED, REWRITTEN, UNREADABLE),
)
# Who reads and hashes the lake's rows of a table.
SLOTLAKE, EXECUTORS = "slotlake", "executors"


@dataclass(frozen=True)
class Difference:
    """One row (or column, or table) that is not the same on both sides.

    Attributes:
        kind: one of KINDS.
        key: the row's key as PostgreSQL text by column name; of a table without a key all its
            columns, shortened.
        columns: of DIFFERENT and NO_COLUMN, the columns concerned.
        rows: how many rows this stands for: more than one for duplicates.
        reason: of ASIDE, LOCKED, REWRITTEN and UNREADABLE, why.
    """

    kind: str
    key: Mapping[str, str | None] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    rows: int = 1
    reason: str = ""

    def __str__(self) -> str:
        key = ", ".join(f"{name}={'NULL' if value is None else value}" for name, value in self.key.items())
        columns = f"in {', '.join(self.columns)}" if self.columns else ""
        times = f"({self.rows} rows)" if self.rows > 1 else ""
        kind = f"{self.kind}:" if key or self.reason else self.kind
        return " ".join(part for part in (kind, key, self.reason, columns, times) if part)


@dataclass(frozen=True)
class TableResult:
    """One table compared.

    Attributes:
        table: the source's name for it.
        totals: rows per kind of difference; empty if equal.
        differences: the first of them.
        buckets, buckets_different: how finely it was compared.
        source_seconds, lake_seconds: spent on hashing either side.
        lake_read_by: who hashed the lake's rows, SLOTLAKE or EXECUTORS (of Spark, on their machines).
        compared: which rows were compared, in words; empty: all.
        left: why none were; empty if some were.
    """

    table: str
    source_rows: int
    lake_rows: int
    totals: dict[str, int] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    buckets: int = 0
    buckets_different: int = 0
    source_seconds: float = 0.0
    lake_seconds: float = 0.0
    lake_read_by: str = SLOTLAKE
    compared: str = ""
    left: str = ""

    @property
    def equal(self) -> bool:
        """No difference of any kind."""
        return not self.totals

    @property
    def differences_total(self) -> int:
        """All differing rows, listed or not."""
        return sum(self.totals.values())

    def as_dict(self) -> dict[str, Any]:
        """JSON-able values."""
        return {"equal": self.equal, "differences_total": self.differences_total} | asdict(self)


def not_compared(table: str, error: LockedError | UnreadableRowsError | DamagedError) -> TableResult:
    """Return the result of a table that one of both sides could not read; the others are compared."""
    locked = isinstance(error, LockedError)
    kind, reason = (LOCKED, error.way_out) if locked else (UNREADABLE, f"{error.what}. {error.way_out}")
    where = "" if locked or isinstance(error, UnreadableRowsError) else f" ({error.where})"
    return TableResult(table, 0, 0, {kind: 1}, (Difference(kind, reason=f"{reason}{where}"),))


def rewritten(table: str) -> TableResult:
    """Return the result of a table that was altered, or differs and was rewritten, since the snapshot."""
    why = (
        "TRUNCATE, an ALTER TABLE or VACUUM FULL gave it new files, or other columns or names, after the "
        "snapshot was taken, so rows of before may not be seen any more; the next verification compares it"
    )
    return TableResult(table, 0, 0, {REWRITTEN: 1}, (Difference(REWRITTEN, reason=why),))


def joined(first: TableResult | None, second: TableResult) -> TableResult:
    """Return the results of two parts of one table as one.

    Args:
        first: of the rows that were compared before; None: of none.
    """
    if first is None:
        return second
    counts = {
        name: getattr(first, name) + getattr(second, name)
        for name in ("source_rows", "lake_rows", "buckets", "buckets_different", "source_seconds")
    }
    kinds = [kind for kind in KINDS if kind in first.totals or kind in second.totals]
    return replace(
        second,
        **counts,
        totals={kind: first.totals.get(kind, 0) + second.totals.get(kind, 0) for kind in kinds},
        differences=(*first.differences, *second.differences),
        lake_seconds=round(first.lake_seconds + second.lake_seconds, 3),
        compared=", ".join(filter(None, (first.compared, second.compared))),
        left="" if second.compared else first.left or second.left,
    )


def one_report(reports: Sequence[Report]) -> Report:
    """Return verifications that followed each other as one, with the LSN of the last.

    Args:
        reports: at least one.
    """
    tables: dict[str, TableResult] = {}
    for report in reports:
        for name, table in report.tables.items():
            tables[name] = joined(tables.get(name), table)
    scope = ", ".join(report.scope for report in reports)
    seconds = sum(report.seconds for report in reports)
    docs = next((report.data_docs for report in reversed(reports) if report.data_docs), "")
    return replace(reports[-1], tables=tables, scope=scope, seconds=round(seconds, 3), data_docs=docs)


@dataclass(frozen=True)
class SuiteResult:
    """A suite of the user, checked on one table.

    Attributes:
        table: the source's name for it.
        suite: as the pipeline file names it.
        expectations: how many there are.
        failed: those that failed, with counts and without values.
        seconds: of the check.
    """

    table: str
    suite: str
    expectations: int
    failed: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def success(self) -> bool:
        """All expectations are met."""
        return not self.failed

    def __str__(self) -> str:
        if self.success:
            return f"{self.table}: the suite {self.suite!r} is met ({self.expectations} expectations)"
        counts = f"{len(self.failed)} of {self.expectations} expectations"
        return f"{self.table}: the suite {self.suite!r} fails, {counts}: {'; '.join(self.failed)}"


@dataclass(frozen=True)
class Report:
    """All tables compared at one position of the source.

    Attributes:
        lsn: the position, as PostgreSQL writes it.
        tables: by the source's name.
        seconds: of the whole comparison.
        scope: which rows were compared, one of SCOPES.
        source_seconds: for which the source worked; None if that was not measured.
        suites: the user's suites that were checked at this position.
        data_docs: the index page of the Data Docs, which this machine has; empty if none were written.
    """

    lsn: str
    tables: dict[str, TableResult]
    seconds: float = 0.0
    scope: str = FULL
    source_seconds: float | None = None
    suites: tuple[SuiteResult, ...] = ()
    data_docs: str = ""

    @property
    def equal(self) -> bool:
        """Every table is."""
        return all(table.equal for table in self.tables.values())

    @property
    def success(self) -> bool:
        """Every table is equal, and the user's suites are met."""
        return self.equal and all(suite.success for suite in self.suites)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able values."""
        tables = {name: table.as_dict() for name, table in self.tables.items()}
        whole = {"equal": self.equal, "lsn": self.lsn, "seconds": self.seconds, "scope": self.scope}
        suites = [{"success": suite.success} | asdict(suite) for suite in self.suites]
        more = {**({"suites": suites} if suites else {}), "data_docs": self.data_docs}
        return {**whole, "source_seconds": self.source_seconds, "tables": tables, **more}
