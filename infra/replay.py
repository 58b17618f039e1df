"""`slotlake replay`: archived batches once more, into a scratch namespace, never into the live tables.

It begins with the lake as it was at a kept point and applies what the archive holds from there on, in the
batches that they were or in batches of another size.  What comes out is what the live lake held at the end of
the range, unless a table was copied or read again within it: the report names those.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from decoder.changelog import Batch
from decoder.errors import ChangeLogError
from decoder.lsn import format_lsn
from infra.batches import on_conflict
from infra.lock import exclusive
from infra.reports import Report
from infra.types_chosen import on_lossy

if TYPE_CHECKING:
    from infra.output import Progressing
    from infra.pipeline import Pipeline
    from spark.read import Cut


@dataclass(frozen=True)
class ReplayReport(Report):
    """What was replayed.

    Attributes:
        from_lsn, lsn: the point that it began with, and where it ended.
        batches: how many were applied; ``archived``: how many the archive has of the range.
        tables: the scratch tables.
        copied_meanwhile: lake tables that were copied, or read again, in the range: their content came
            from the source, not from the change log, so their replay lacks it.
    """

    namespace: str
    from_lsn: str
    lsn: str
    batches: int
    archived: int
    transactions: int
    changes: int
    seconds: float
    tables: list[str] = field(default_factory=list)
    copied_meanwhile: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Range:
    """From a kept point to another, in batches of so many transactions (None: as they were)."""

    start: int | datetime | None
    end: int | datetime | None
    transactions: int | None


def replay(pipeline: Pipeline, namespace: str, wanted: Range, progress: Progressing) -> ReplayReport:
    """Replay a range into a namespace; what an earlier replay left there goes first.

    Raises:
        LakeError: the start is not kept any more; or the namespace is not a replay's.
        ChangeLogError: the archive lacks a batch of the range, or it was altered.
    """
    from spark.rebatch import rebatched
    from spark.replay import owner, prepare_scratch, scratch_of

    started = time.monotonic()
    scratch = scratch_of(pipeline.lake, namespace)
    begin, rows = _bounds(pipeline, wanted)
    archived = _archived(pipeline, rows)
    with exclusive(pipeline.file.state_dir / "replay", pipeline.name):
        progress("replay: the lake as it was", 0)
        tables = prepare_scratch(begin, scratch, pipeline.name)
        done = transactions = changes = 0
        for batch in rebatched(archived, wanted.transactions) if archived else ():
            _apply(pipeline, scratch, batch, owner(pipeline.name))
            done += 1
            transactions += int(batch.manifest["transactions"])
            changes += int(batch.manifest["changes"])
            progress("replay: transactions", transactions)
    return ReplayReport(
        namespace=namespace,
        from_lsn=format_lsn(begin.position),
        lsn=format_lsn(archived[-1].end_lsn if archived else begin.position),
        batches=done,
        archived=len(archived),
        transactions=transactions,
        changes=changes,
        seconds=time.monotonic() - started,
        tables=tables,
        copied_meanwhile=sorted({t for row in rows if row["kind"] != "batch" for t in row["changed"]}),
    )


def _bounds(pipeline: Pipeline, wanted: Range) -> tuple[Cut, list[dict[str, Any]]]:
    """The lake at the start, and the points behind it up to the end, as rows of `commits`."""
    from spark.catalog import open_catalog
    from spark.commits import commits_name
    from spark.points import kept_points
    from spark.publish_swap import load
    from spark.read import Cut

    end = Cut.of(pipeline.lake, wanted.end)
    start = wanted.start
    if start is None:
        with open_catalog(pipeline.lake) as catalog:
            commits = load(catalog.pointers(), commits_name(pipeline.lake.namespace))
        start = kept_points(commits.metadata)[0].position
    begin = Cut.of(pipeline.lake, start)
    rows = [row for row in end.commits() if begin.position < row["position"] <= end.position]
    return begin, rows


def _archived(pipeline: Pipeline, rows: list[dict[str, Any]]) -> list[Batch]:
    """The batches that the lake was made of, each the very one."""
    found = []
    for row in rows:
        if row["kind"] != "batch":
            continue
        path = pipeline.file.changelog_dir / row["batch"]
        if not path.is_dir():
            raise ChangeLogError(
                f"the archive has batch {row['batch']} no more",
                where=str(pipeline.file.changelog_dir),
                way_out="replay a later range; changelog.keep_days says how long batches are kept",
            )
        batch = Batch.open(path)
        if batch.digest != row["digest"]:
            raise ChangeLogError("the archived batch is not the one that was published", where=str(path))
        found.append(batch)
    return found


def _apply(pipeline: Pipeline, scratch: Any, batch: Any, owner: str) -> None:
    from spark import annex
    from spark.apply import apply_batch
    from spark.lossy import refuse_lossy_batch
    from spark.publish import publish_batch

    told = annex.read(batch)
    refuse_lossy_batch(scratch, batch, on_lossy(pipeline.file), told)
    apply_batch(pipeline.session, scratch, batch, owner, on_conflict(pipeline), told)
    publish_batch(scratch, batch, owner, told)
