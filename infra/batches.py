"""The micro-batch: pull, apply, publish, confirm, each step callable alone and safe to repeat.

Each step asks the lake where it is.  A batch that is already published is left alone by every step;
a batch that does not follow the lake's position is refused.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from decoder.changelog import Batch, batch_positions, batch_starting_at, batches
from decoder.confirm import confirm
from decoder.errors import ChangeLogError
from decoder.lsn import format_lsn
from decoder.plugins.changelog import pull_rows
from decoder.position import settled_position
from decoder.pull import PullProgress
from decoder.slots import ExportedSnapshot, create_slot
from decoder.source import SourceSettings, connect, source_errors
from infra import follow, known_tables
from infra.reports import ApplyReport, ConfirmReport, PublishReport, PullReport, SyncReport
from infra.types_chosen import on_lossy
from infra.watch import note_source

if TYPE_CHECKING:
    from infra.output import Progressing
    from infra.pipeline import Pipeline
    from spark.apply import Applied
    from spark.aside import Name
    from spark.conflicts import Choices


def pull_next(
    pipeline: Pipeline,
    *,
    progress: Progressing,
    until: int | None = None,
    snapshot: ExportedSnapshot | None = None,
) -> PullReport:
    """Write the batch that follows the lake's position, or find it written.

    Args:
        until: end exactly there; else at the source's position now.
        snapshot: of the source there, if there is one.
    """
    from infra.aside import tables_aside, without_the_troubled
    from infra.recopying import reasons

    aside = tables_aside(pipeline).keys() if until is None else ()
    goal = until, snapshot
    report = without_the_troubled(pipeline, lambda: _pull_next(pipeline, goal, aside, progress))
    return replace(report, set_aside=reasons(pipeline))


def _pull_next(
    pipeline: Pipeline,
    goal: tuple[int | None, ExportedSnapshot | None],
    aside: Collection[Name],
    progress: Progressing,
) -> PullReport:
    """As `pull_next`, of which a table's trouble is nobody's yet; ``aside``: tables that may come back."""
    from infra.aside import set_aside_unreadable
    from infra.evolution import evolved
    from infra.joining import add_new_tables, how_far, note_changes
    from infra.modes import begin_modes
    from infra.recopying import let_go_of
    from infra.recovery_findings import require_same_content, require_whole
    from infra.resuming import bring_back
    from infra.selection import refuse_changed
    from infra.source_history import follow_history
    from infra.tables import fill_added_columns

    started = time.monotonic()
    until, snapshot = goal
    position = pipeline.position()
    follow_history(pipeline, position)
    require_whole(pipeline, at_snapshot=until is not None)
    require_same_content(pipeline, position)
    if until is None:
        refuse_changed(pipeline)
    added = add_new_tables(pipeline, progress) if until is None else []
    joining = how_far(pipeline) if until is None else {}
    if until is None:
        let_go_of(pipeline, progress)
    resumed = bring_back(pipeline, aside, progress)
    if until is None:
        known_tables.note(pipeline, added)
        begin_modes(pipeline, progress)
        fill_added_columns(pipeline, progress)
        position = pipeline.position()  # any of these may have moved the lake on
    batch = cut(pipeline, position, until, progress)
    set_aside_unreadable(pipeline, batch)
    batch = evolved(pipeline, batch, snapshot, progress)
    set_aside_unreadable(pipeline, batch)
    note_changes(pipeline, batch)
    if batch.end_lsn == position:
        at = format_lsn(position)
        return PullReport(None, at, at, added_tables=added, joining=joining, resumed=resumed)
    return PullReport(
        batch=batch.name,
        start_lsn=format_lsn(batch.start_lsn),
        end_lsn=format_lsn(batch.end_lsn),
        transactions=batch.transactions,
        changes=batch.changes,
        bytes=batch.bytes,
        seconds=time.monotonic() - started,
        added_tables=added,
        joining=joining,
        resumed=resumed,
    )


def cut(
    pipeline: Pipeline, position: int, until: int | None, progress: Progressing, *, whole: bool = False
) -> Batch:
    """The next batch: from the standing puller if one runs, else by a connection of its own.

    Args:
        whole: all up to ``until``, however much that is.
    """
    settings = replace(pipeline.pulling, batch_bytes_max=None) if whole else pipeline.pulling
    if settings.source.plugin != "pgoutput":
        return pull_rows(
            settings.source,
            settings.pipeline,
            settings.changelog,
            start=position,
            until=until,
            memory_bytes=settings.memory_bytes,
            pass_over=True,
        )
    followed = follow.batch(pipeline, position, until, whole=whole)
    if followed is not None:
        return followed

    def tell(done: PullProgress) -> None:
        progress("pull: bytes received", done.received_bytes)

    stream = pipeline.stream
    if not whole and stream.worth_it():
        made = stream.batch(position, until, tell)
        if not stream.worth_keeping():
            stream.end()
        return made
    if whole:
        stream.end()
    return settings.pull(position, until, tell)


def source_position(source: SourceSettings) -> int:
    """A position of the source behind all that has been committed before the call."""
    with connect(source.dsn) as connection, source_errors(source.dsn, "reading the WAL position"):
        return settled_position(connection)
    raise AssertionError("unreachable")


def named(pipeline: Pipeline, name: str) -> Batch:
    """A batch of the change log by its name.

    Raises:
        ChangeLogError: there is no such batch.
    """
    path = pipeline.file.changelog_dir / name
    if "/" in name or not path.is_dir():
        raise ChangeLogError(
            f"the change log has no batch {name!r}",
            where=str(pipeline.file.changelog_dir),
            way_out="clear the pull task too, or run: slotlake sync",
        )
    return Batch.open(path)


def apply_named(pipeline: Pipeline, name: str, *, judged: bool = False) -> ApplyReport:
    """Stage a batch, after checking that it is what its manifest says.

    Args:
        judged: the lake's tables have been looked at.
    """
    from infra.aside import without_the_troubled
    from infra.recopying import reasons
    from infra.recovery_findings import require_whole

    started = time.monotonic()
    batch = named(pipeline, name)
    batch.verify()
    if not judged:
        require_whole(pipeline)
    applied = without_the_troubled(pipeline, lambda: _staged(pipeline, batch))
    return ApplyReport(
        batch=name,
        already_published=applied.already_published,
        tables={table.source_table: table.changes for table in applied.tables.values()},
        conflicts={
            table.source_table: table.conflicts.counts for table in applied.tables.values() if table.conflicts
        },
        set_aside=reasons(pipeline),
        seconds=time.monotonic() - started,
    )


def _staged(pipeline: Pipeline, batch: Batch) -> Applied:
    from infra.aside import pass_over
    from spark import annex
    from spark.apply import apply_batch
    from spark.lossy import refuse_lossy_batch

    pass_over(pipeline, batch)
    told = annex.read(batch)
    refuse_lossy_batch(pipeline.lake, batch, on_lossy(pipeline.file), told)
    return apply_batch(pipeline.session, pipeline.lake, batch, pipeline.name, on_conflict(pipeline), told)


def on_conflict(pipeline: Pipeline) -> Choices:
    from spark.conflicts import Choices
    from spark.names import parse_postgres_name

    own = {name: section.on_conflict for name, section in pipeline.file.tables.items()}
    chosen = {parse_postgres_name(name): choice for name, choice in own.items() if choice}
    return Choices(pipeline.file.on_conflict, chosen)


def publish_named(pipeline: Pipeline, name: str) -> PublishReport:
    """Publish a staged batch."""
    from spark import annex
    from spark.publish import publish_batch

    started = time.monotonic()
    batch = named(pipeline, name)
    published = publish_batch(pipeline.lake, batch, pipeline.name, annex.read(batch))
    return PublishReport(
        batch=name,
        lsn=format_lsn(published.position),
        already_published=published.already,
        tables=dict(published.snapshots),
        seconds=time.monotonic() - started,
    )


def confirm_position(pipeline: Pipeline) -> ConfirmReport:
    """Confirm the lake's position to the server, then let go of batches that are old enough."""
    position = pipeline.position()
    held = "stream" in vars(pipeline) and pipeline.stream.confirm(position)
    if not (held or follow.confirm(pipeline, position)):
        confirm(pipeline.source, position)
    _forget_old_batches(pipeline, position)
    return ConfirmReport(pipeline.source.slot, format_lsn(position))


def catch_up(
    pipeline: Pipeline,
    *,
    progress: Progressing,
    until: int | None = None,
    snapshot: ExportedSnapshot | None = None,
) -> SyncReport:
    """Bring the lake to the source's position as it is now, or exactly to ``until``, where ``snapshot`` is.

    Takes more than one batch when a crash has left one behind, or when one batch would be too large.
    """
    from infra.recopying import reasons
    from infra.tables import fill_added_columns

    started = time.monotonic()
    first = pipeline.position()
    asked = time.time()
    target = source_position(pipeline.source) if until is None else until
    if until is None:
        note_source(pipeline, target, asked)
    else:
        _end_what_was_begun(pipeline, until)
    seconds: dict[str, float] = {}
    tables: dict[str, int] = {}
    conflicts: dict[str, dict[str, int]] = {}
    last: PullReport | None = None
    transactions = changes = 0
    added: list[str] = []
    resumed: list[str] = []
    while True:
        pulled = _one_batch(pipeline, progress, (until, snapshot), seconds, tables, conflicts)
        added += pulled.added_tables
        resumed += pulled.resumed
        if pulled.batch is not None:
            last, transactions, changes = pulled, transactions + pulled.transactions, changes + pulled.changes
        if pulled.batch is None or pipeline.position() >= target:
            break
    if until is None and last is not None:
        fill_added_columns(pipeline, progress)
    return SyncReport(
        batch=None if last is None else last.batch,
        start_lsn=format_lsn(first),
        lsn=format_lsn(pipeline.position()),
        transactions=transactions,
        changes=changes,
        tables=tables,
        conflicts=conflicts,
        seconds=time.monotonic() - started,
        seconds_by_step={step: round(spent, 3) for step, spent in seconds.items()},
        added_tables=added,
        joining=pulled.joining,
        resumed=resumed,
        set_aside=reasons(pipeline),
    )


def _end_what_was_begun(pipeline: Pipeline, until: int) -> None:
    """A batch that a killed run has published for some tables only: no other than that can follow it.

    Such there are where tables are published one after another.
    """
    from spark.taking_back import ahead

    if pipeline.lake.publish == "atomic":
        return
    batch = batch_starting_at(pipeline.file.changelog_dir, pipeline.position())
    if batch is None or batch.empty or batch.end_lsn > until:
        return
    if ahead(pipeline.lake, pipeline.name):
        apply_named(pipeline, batch.name)
        publish_named(pipeline, batch.name)


def _one_batch(
    pipeline: Pipeline,
    progress: Progressing,
    goal: tuple[int | None, ExportedSnapshot | None],
    seconds: dict[str, float],
    tables: dict[str, int],
    conflicts: dict[str, dict[str, int]],
) -> PullReport:
    with _timed(seconds, "pull"):
        pulled = pull_next(pipeline, progress=progress, until=goal[0], snapshot=goal[1])
    if pulled.batch is not None:
        with _timed(seconds, "apply"):
            progress("apply", 0)
            applied = apply_named(pipeline, pulled.batch, judged=True)
        for table, count in applied.tables.items():
            tables[table] = tables.get(table, 0) + count
        for table, counts in applied.conflicts.items():
            met = conflicts.setdefault(table, {})
            met.update({kind: met.get(kind, 0) + count for kind, count in counts.items()})
        with _timed(seconds, "publish"):
            progress("publish", 0)
            publish_named(pipeline, pulled.batch)
    with _timed(seconds, "confirm"):
        confirm_position(pipeline)
    return pulled


@contextmanager
def at_exact_lsn(
    pipeline: Pipeline, timeout_seconds: float, progress: Progressing
) -> Iterator[ExportedSnapshot]:
    """Bring the lake exactly to the position of a snapshot of the source, and keep that snapshot.

    Raises:
        SlotError: transactions stayed open for ``timeout_seconds``; the message names them.
    """
    progress("waiting for a snapshot of the source", 0)
    asked = time.time()
    with create_slot(pipeline.source, temporary=True, wait_seconds=timeout_seconds) as snapshot:
        note_source(pipeline, snapshot.lsn, asked)
        catch_up(pipeline, progress=progress, until=snapshot.lsn, snapshot=snapshot)
        yield snapshot


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        seconds[step] = seconds.get(step, 0.0) + time.monotonic() - started


def _forget_old_batches(pipeline: Pipeline, position: int) -> None:
    """Remove archived batches that are published and older than the pipeline file keeps them."""
    from spark import annex

    oldest = time.time() - pipeline.file.changelog.keep_days * 86400
    for path in batches(pipeline.file.changelog_dir):
        positions = batch_positions(path.name)
        if positions is not None and positions[1] <= position and path.stat().st_mtime < oldest:
            shutil.rmtree(path, ignore_errors=True)
            shutil.rmtree(annex.place(path), ignore_errors=True)
