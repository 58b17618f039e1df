"""`slotlake replay`: apply archived batches again, in a scratch namespace, never to the live tables.

It begins with the lake as it was at a kept point and applies what the archive has from there on, in the
batches that they were or in batches of another size.  The result is what the live lake had at the end of the
range, unless a table was copied or read again within it: the report names those.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.errors import ChangeLogError
from slotlake.decoder.lsn import format_lsn
from slotlake.infra.config.of_tables import on_conflict
from slotlake.infra.config.private_files import with_private_files
from slotlake.infra.progress import Progressing, silent
from slotlake.infra.reports import Report
from slotlake.infra.selection.types import on_lossy
from slotlake.spark.names import COMMITS

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.read.point import ReadPoint
    from slotlake.spark.tables.metadata import Metadata
    from slotlake.spark.tables.shapes import ChangeBatch


@dataclass(frozen=True)
class ReplayReport(Report):
    """What was replayed.

    Attributes:
        namespace: the scratch namespace.
        from_lsn: LSN of the point that it began with.
        lsn: LSN where it ended.
        batches: how many were applied.
        archived: how many the archive has of the range.
        transactions: how many were applied.
        changes: how many were applied.
        tables: the scratch tables.
        copied_meanwhile: lake tables that were copied, or read again, in the range: their content came from
            the source, not from the change log, so their replay lacks it.
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
class ExtendReport(ReplayReport):
    """As a replay's.

    Attributes:
        covered: False if the lake has no point of that time, or keeps none: nothing was done.
        went_on: it continued where an earlier replay into the namespace had ended.
    """

    covered: bool = True
    went_on: bool = False


@dataclass(frozen=True)
class Range:
    """A range of kept points.

    Attributes:
        start: position or time; None for the oldest kept point.
        end: position or time; None for the newest.
        transactions: how many make a batch; None for the batches as they were.
    """

    start: int | datetime | None
    end: int | datetime | None
    transactions: int | None


@with_private_files
def replay(
    pipeline: OpenPipeline, namespace: str, chosen_range: Range, progress: Progressing
) -> ReplayReport:
    """Replay a range into a namespace; what an earlier replay left there goes first.

    Args:
        pipeline: a pipeline whose change log has the batches of the range.
        namespace: the scratch namespace, which no pipeline uses.
        chosen_range: the kept points between which batches are replayed.
        progress: called with the transactions so far.

    Raises:
        LakeError: the start is not kept any more; or the namespace is not a replay's.
        ChangeLogError: the archive lacks a batch of the range, or it was altered.
    """
    from slotlake.spark.replay.rebatch import rebatched
    from slotlake.spark.replay.scratch import prepare_scratch, scratch_of

    started = time.monotonic()
    scratch = scratch_of(pipeline.lake, namespace)
    begin, rows = _Replay(pipeline).bounds(chosen_range)
    archived = _Replay(pipeline).archived(rows)
    with pipeline.locks.part("replay"):
        progress("replay: the lake as it was", 0)
        tables = prepare_scratch(begin, scratch, pipeline.name)
        batches = rebatched(archived, chosen_range.transactions) if archived else ()
        counts = _Replay(pipeline).apply_all(scratch, batches, progress)
    return ReplayReport(
        namespace=namespace,
        from_lsn=format_lsn(begin.position),
        lsn=format_lsn(archived[-1].end_lsn if archived else begin.position),
        archived=len(archived),
        seconds=time.monotonic() - started,
        tables=tables,
        copied_meanwhile=_copied_tables(rows),
        **counts,
    )


@with_private_files
def extend(
    pipeline: OpenPipeline, namespace: str, start: datetime, end: datetime, progress: Progressing = silent
) -> ExtendReport:
    """Let a namespace hold what the lake held at the end of a range of time, having gone through all of it.

    It goes on from what an earlier replay left there, if that adjoins or overlaps, and is done if that
    reaches as far; else it begins again.  So neighbouring ranges, in whatever order, become one, and a range
    replayed twice is as replayed once.

    Args:
        pipeline: a pipeline whose change log has the batches of the range.
        namespace: the scratch namespace, which no pipeline uses.
        start: earlier than all that is kept stands for the oldest kept point.
        end: in the future stands for now.
        progress: called with the transactions so far.

    Raises:
        LakeError: as :func:`replay`.
        ChangeLogError: as :func:`replay`.
    """
    from slotlake.spark.publish.points import readable_points
    from slotlake.spark.replay.scratch import scratch_of

    started = time.monotonic()
    scratch = scratch_of(pipeline.lake, namespace)
    points = readable_points(_commits(pipeline.lake))
    positions = [point.position for point in points if point.committed <= end]
    if not positions:
        nothing = ReplayReport(namespace, "", "", 0, 0, 0, 0, time.monotonic() - started)
        return ExtendReport(**{**asdict(nothing), "covered": False})
    first = max([points[0].position, *(p.position for p in points if p.committed <= start)])
    last = max(positions)
    covered = _covered_range(pipeline.name, scratch, {point.position for point in points})
    if covered is None or covered[0] > last or covered[1] < first:
        return ExtendReport(**asdict(replay(pipeline, namespace, Range(first, last, None), progress)))
    last = max(last, covered[1])
    if first < covered[0]:
        return ExtendReport(**asdict(replay(pipeline, namespace, Range(first, last, None), progress)))
    return _Replay(pipeline).extend_from_end(scratch, covered, last, progress)


class _Replay:
    """Batches that are applied again in a scratch namespace."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline, self._file, self._lake = pipeline, pipeline.file, pipeline.lake

    def extend_from_end(
        self, scratch: LakeSettings, covered: tuple[int, int], last: int, progress: Progressing
    ) -> ExtendReport:
        from slotlake.spark.read.point import ReadPoint
        from slotlake.spark.replay.scratch import spare_shared_files

        started = time.monotonic()
        rows = ReadPoint.latest(self._lake).commits(covered[1], pins=False)
        rows = [row for row in rows if row["position"] <= last]
        archived = self.archived(rows)
        with self._pipeline.locks.part("replay"):
            spare_shared_files(scratch, self._pipeline.name)
            counts = self.apply_all(scratch, archived, progress)
        names = ReadPoint.latest(scratch).pinned
        report = ReplayReport(
            namespace=scratch.namespace,
            from_lsn=format_lsn(covered[0]),
            lsn=format_lsn(archived[-1].end_lsn if archived else covered[1]),
            archived=len(archived),
            seconds=time.monotonic() - started,
            tables=sorted(str(name) for name in names if name.table != COMMITS),
            copied_meanwhile=_copied_tables(rows),
            **counts,
        )
        return ExtendReport(**{**asdict(report), "went_on": True})

    def apply_all(
        self, scratch: LakeSettings, batches: Iterable[ChangeBatch], progress: Progressing
    ) -> dict[str, int]:
        from slotlake.spark.replay.scratch import owner

        done = transactions = changes = 0
        for batch in batches:
            self.apply(scratch, batch, owner(self._pipeline.name))
            done += 1
            transactions += int(batch.manifest["transactions"])
            changes += int(batch.manifest["changes"])
            progress("replay: transactions", transactions)
        return {"batches": done, "transactions": transactions, "changes": changes}

    def bounds(self, chosen_range: Range) -> tuple[ReadPoint, list[dict[str, Any]]]:
        """The lake at the start, and the later points up to the end, as rows of `commits`."""
        from slotlake.spark.publish.points import readable_points
        from slotlake.spark.read.point import ReadPoint

        end = ReadPoint.of(self._lake, chosen_range.end)
        start = chosen_range.start
        if start is None:
            start = readable_points(_commits(self._lake))[0].position
        begin = ReadPoint.of(self._lake, start)
        rows = end.commits(begin.position, pins=False)
        rows = [row for row in rows if row["position"] <= end.position]
        return begin, rows

    def archived(self, rows: list[dict[str, Any]]) -> list[Batch]:
        """The batches that the lake was made of, checked by their digests."""
        archived = []
        names = {row["batch"] for row in rows if row["kind"] == "batch"}
        if self._pipeline.stored is not None and names:
            self._pipeline.stored.fetch(names.__contains__)
        for row in rows:
            if row["kind"] != "batch":
                continue
            path = self._file.changelog_dir / row["batch"]
            if not path.is_dir():
                raise ChangeLogError(
                    f"the archive does not have batch {row['batch']} any more",
                    where=str(self._file.changelog_dir),
                    way_out="replay a later range; changelog.keep_days says how long batches are kept",
                )
            batch = Batch.open(path)
            if batch.digest != row["digest"]:
                raise ChangeLogError(
                    "the archived batch is not the one that was published",
                    where=str(path),
                    way_out="restore the folder from a copy, or replay a range without this batch",
                )
            archived.append(batch)
        return archived

    def apply(self, scratch: Any, batch: Any, owner: str) -> None:
        from slotlake.spark.apply.lossy import refuse_lossy_batch
        from slotlake.spark.apply.stage import apply_batch
        from slotlake.spark.publish import sidecar
        from slotlake.spark.publish.publication import publish_batch

        contents = sidecar.read(batch)
        refuse_lossy_batch(scratch, batch, on_lossy(self._file), contents)
        apply_batch(self._pipeline.engine, scratch, batch, owner, on_conflict(self._file), contents)
        publish_batch(scratch, batch, owner, contents)


def _covered_range(
    name: str, scratch: LakeSettings, point_positions: Container[int]
) -> tuple[int, int] | None:
    """The positions at which the scratch tables begin and end; None if they cannot be extended."""
    from slotlake.spark.copy.owner import is_initialised
    from slotlake.spark.read.point import ReadPoint
    from slotlake.spark.replay.scratch import owner

    if not is_initialised(scratch, owner(name)):
        return None
    point = ReadPoint.latest(scratch)
    begin = int(point.commits(pins=False)[0]["position"])
    return (begin, point.position) if begin in point_positions else None


def _copied_tables(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted({table for row in rows if row["kind"] != "batch" for table in row["changed"]})


def _commits(lake: LakeSettings) -> Metadata:
    from slotlake.spark.catalog.base import load_one
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.publish.commits import commits_name

    with open_catalog(lake) as catalog:
        return load_one(catalog, commits_name(lake.namespace)).metadata
