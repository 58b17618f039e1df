"""What the commands report: plain frozen records that turn into JSON and hold no row values.

LSNs are PostgreSQL's text form, durations are seconds, sizes are bytes.  A verification's list of differing
keys (expectations/) is the one exception.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Report:
    """Base of all reports."""

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-able values."""
        return asdict(self)


@dataclass(frozen=True)
class TableCopy(Report):
    """One table of an initial copy or a backfill.

    ``ranges``: into which it was cut; ``ranges_kept``: of these, copied by an attempt that was cut off.
    """

    table: str
    lake_table: str
    rows: int
    files: int
    ranges: int = 1
    ranges_kept: int = 0
    state: str = "ready"


@dataclass(frozen=True)
class InitReport(Report):
    """What `init` did; ``already`` when the pipeline had been made before and nothing was to do.

    ``machines``: host name → how many ranges it has copied, if several machines may copy.
    """

    pipeline: str
    already: bool
    lsn: str
    slot: str
    publications_made: list[str] = field(default_factory=list)
    tables: list[TableCopy] = field(default_factory=list)
    rows: int = 0
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)
    ddl_trigger: str | None = None
    set_aside: dict[str, str] = field(default_factory=dict)
    machines: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CopyWorkerReport(Report):
    """What one machine has copied of an initial copy that another one runs.

    ``tables``: how many ranges of each; ``left_out``: tables that it did not copy, each with its reason: the
    machine that runs `init` copies them, or says what is wrong.  ``already``: nothing was left to copy.
    """

    pipeline: str
    machine: str
    already: bool = False
    ranges: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    tables: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TriggerReport(Report):
    """The event trigger: ``installed``, or ``disabled`` by someone; ``already``: it was there before."""

    pipeline: str
    state: str
    already: bool


@dataclass(frozen=True)
class PullReport(Report):
    """A batch in the change log; ``batch`` is None when the lake is where the source is.

    ``joining``: tables that are being copied over several syncs, and how much of each is there.
    ``resumed``: tables that had been set aside and are followed again; ``set_aside``: those that are not
    followed now, each with its reason.
    ``oldest_commit``, ``newest_commit``: when the first and the last of its transactions were committed
    (ISO 8601); None without any.
    ``warnings``: derived tables that somebody dropped, or that cannot be begun.
    """

    batch: str | None
    start_lsn: str
    end_lsn: str
    transactions: int = 0
    changes: int = 0
    bytes: int = 0
    seconds: float = 0.0
    added_tables: list[str] = field(default_factory=list)
    joining: dict[str, str] = field(default_factory=dict)
    resumed: list[str] = field(default_factory=list)
    set_aside: dict[str, str] = field(default_factory=dict)
    oldest_commit: str | None = None
    newest_commit: str | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ApplyReport(Report):
    """The tables of a batch, staged (or found already published).

    ``conflicts``: per table, what its changes met that the source did not have (docs/pipeline-file.md).
    ``set_aside``: as `PullReport` has it.
    """

    batch: str
    already_published: bool
    tables: dict[str, int] = field(default_factory=dict)
    conflicts: dict[str, dict[str, int]] = field(default_factory=dict)
    set_aside: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class PublishReport(Report):
    """A consistency point: all tables at one LSN since this moment.

    ``warnings``: derived tables that were dropped after they were staged, and are not in it.
    """

    batch: str
    lsn: str
    already_published: bool
    tables: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TableCompacted(Report):
    """A lake table whose small files a sync has packed.

    ``failed``: why that could not be done; the batch is published all the same, and the table is as it was.
    """

    lake_table: str
    rewritten_files: int = 0
    written_files: int = 0
    seconds: float = 0.0
    failed: str = ""


@dataclass(frozen=True)
class ConfirmReport(Report):
    """The position the server may forget WAL up to; the tables that were compacted after the batch."""

    slot: str
    lsn: str
    compacted: list[TableCompacted] = field(default_factory=list)


@dataclass(frozen=True)
class SyncReport(Report):
    """One micro-batch from the source's WAL to the published lake.

    ``conflicts``: per table, what its changes met that the source did not have.
    ``joining``, ``resumed``, ``set_aside``: as `PullReport` has them.
    ``warnings``: what the pipeline file asks for and a sync does not do; derived tables that were dropped.
    ``compacted``: tables whose small files were packed after the batches.
    ``lag_seconds``: the longest time from a commit of these batches until it was queryable, by the clocks of
    the source and of this machine; None without transactions.
    ``oldest_commit``, ``newest_commit``: of all its batches, as `PullReport` has them.
    """

    batch: str | None
    start_lsn: str
    lsn: str
    transactions: int
    changes: int
    tables: dict[str, int]
    seconds: float
    seconds_by_step: dict[str, float] = field(default_factory=dict)
    added_tables: list[str] = field(default_factory=list)
    conflicts: dict[str, dict[str, int]] = field(default_factory=dict)
    joining: dict[str, str] = field(default_factory=dict)
    resumed: list[str] = field(default_factory=list)
    set_aside: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    compacted: list[TableCompacted] = field(default_factory=list)
    lag_seconds: float | None = None
    oldest_commit: str | None = None
    newest_commit: str | None = None


@dataclass(frozen=True)
class RunReport(Report):
    """What a run of many micro-batches did.

    Attributes:
        start_lsn: the lake's position before.
        ended_by: ``stop`` (a signal), ``time`` or ``lsn``.
        batch: the newest with transactions.
        batches: micro-batches with transactions.
        lag_seconds_median, lag_seconds_max: of the micro-batches, each from its oldest commit until it was
            queryable; None without any.
    """

    pipeline: str
    start_lsn: str
    lsn: str
    ended_by: str
    batch: str | None = None
    batches: int = 0
    transactions: int = 0
    changes: int = 0
    seconds: float = 0.0
    lag_seconds_median: float | None = None
    lag_seconds_max: float | None = None


@dataclass(frozen=True)
class ResumeReport(Report):
    """A table that was set aside, copied again and followed from ``lsn`` on; ``already``: it was not.

    ``copying``: how much of a large table is copied; it stays set aside, and further syncs copy the rest.
    """

    table: str
    lake_table: str
    lsn: str
    rows: int = 0
    already: bool = False
    seconds: float = 0.0
    copying: str = ""


@dataclass(frozen=True)
class TableMaintained(Report):
    """What maintenance did to one lake table.

    ``staged``: a batch was being applied to it, so it was left alone.
    ``given_up_files``: files that were rewritten in vain, because batches changed them meanwhile.
    """

    lake_table: str
    staged: bool
    rewritten_files: int
    written_files: int
    expired_snapshots: int
    removed_files: int
    removed_bytes: int
    given_up_files: int = 0


@dataclass(frozen=True)
class MaintainReport(Report):
    """What `maintain` did.

    Attributes:
        left: tables for which the time was too short.
        ended_uploads: uploads in parts to the object store that a killed run had left.
    """

    pipeline: str
    tables: list[TableMaintained]
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0
    ended_uploads: int = 0
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FormatReport(Report):
    """What `format` did: lake table → the Iceberg formats that it had and has, of those that got another."""

    pipeline: str
    tables: dict[str, tuple[int, int]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class LayoutReport(Report):
    """What `layout` did: lake table → in words, the layout that it had and has, of those that got another."""

    pipeline: str
    tables: dict[str, tuple[str, str]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class TableStatus(Report):
    """A source table and where it is in the lake.

    ``takes``: the filter, columns and operations that it takes; empty for all of it.
    ``conflicts``: what its changes met that the source did not have, since it was copied.
    ``beside``: the lake tables with its history and its change log, if they are kept.
    ``copied_again``: when (LSN), and why, it was last copied again without having been asked for.
    ``copied``: while it is copied, how far that is (`infra.copy.states.TableProgress`).
    ``columns``: the columns that have another name in the lake, because it cannot hold theirs, and that name.
    ``life``: where it is in its life (`spark.publish.lives.Life`).
    """

    table: str
    lake_table: str
    state: str
    snapshot_id: int | None
    key: list[str]
    takes: dict[str, Any] = field(default_factory=dict)
    conflicts: dict[str, int] = field(default_factory=dict)
    copied_again: str = ""
    beside: list[str] = field(default_factory=list)
    copied: dict[str, Any] | None = None
    columns: dict[str, str] = field(default_factory=dict)
    life: str = ""


@dataclass(frozen=True)
class Alarm(Report):
    """Something that needs a person soon; ``about``: a table, where there may be several of a kind."""

    kind: str
    what: str
    way_out: str
    about: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.way_out}"


@dataclass(frozen=True, kw_only=True)
class Watched(Report):
    """What the slot costs the source, and what is ahead; None where it is not known, or not so.

    ``lag_seconds``: for how long what is not in the lake has at most been in the source.
    ``wal_bytes_per_second``: measured (infra/source/wal_notes.py).  ``seconds_to_invalidation``: until the
    server gives the slot up because of the setting ``invalidation_by``.  ``held_back_by``: transactions that
    keep slots from moving on, the oldest first; ``sees_all_transactions``: whether this role sees those of
    others. ``other_slots``: the server's other slots.
    """

    lag_seconds: float | None = None
    wal_bytes_per_second: float | None = None
    max_slot_wal_keep_bytes: int | None = None
    idle_timeout_seconds: float | None = None
    slot_inactive_seconds: float | None = None
    seconds_to_invalidation: float | None = None
    invalidation_by: str | None = None
    held_back_by: list[dict[str, Any]] = field(default_factory=list)
    sees_all_transactions: bool = True
    other_slots: list[dict[str, Any]] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)


@dataclass(frozen=True)
class StatusReport(Watched):
    """Where the pipeline stands, seen from both sides.

    ``alarms`` need somebody; ``warnings`` are these in words, and what else is worth knowing.
    ``wal_status``, ``safe_wal_size``: the slot's (pg_replication_slots).
    ``set_aside``: tables that are not followed, each with what `spark.publish.aside.Aside` tells.
    ``views``: the namespaces of pinned views, each with its point.
    ``batch_lag_seconds``: of the newest batch with transactions, from its oldest commit to its publication.
    ``verification``: ``different``: the tables that differ as far as verifications know; of slices, if there
    are any: ``slices``, ``never`` (found equal), ``oldest`` (seconds since 1970); None: none was verified.
    ``copy``: a copy that is under way or was cut off: process, lsn, since, slot (None: it holds none).
    """

    pipeline: str
    state: str
    last_consistent_lsn: str | None
    last_commit_time: str | None
    published_at: str | None
    source_lsn: str | None
    lag_bytes: int | None
    slot: dict[str, Any] | None
    retained_wal_bytes: int | None
    wal_status: str | None
    safe_wal_size: int | None
    changelog_batches: int
    changelog_bytes: int
    tables: list[TableStatus]
    prepared: list[dict[str, Any]] = field(default_factory=list)
    standing_puller: int | None = None
    ddl_trigger: str | None = None
    copy: dict[str, Any] | None = None
    set_aside: list[dict[str, Any]] = field(default_factory=list)
    views: dict[str, str | None] = field(default_factory=dict)
    batch_lag_seconds: float | None = None
    verification: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)
