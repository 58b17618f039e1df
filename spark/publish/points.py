"""Consistency points: which are kept, which one a reader means, and how a reader says it.

The tags of the table `commits` are the kept points: a tag's snapshot says in its summary which LSN it is
and when the last transaction before it was committed in the source.  A point that changed no table gets
no tag, so idle hours do not push out what was kept; the newest point can be read in any case.  Of many
points the older ones stand in past files (spark/publish/past.py), which are opened only for who asks for
them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from slotlake.decoder.errors import LakeError
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.spark.lake import KeepPoints
from slotlake.spark.names import LakeName
from slotlake.spark.publish import past
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata

COMMITTED = "slotlake.commit-time"
_DAY_MS = 86_400_000
_CLOCK_AHEAD_SECONDS = 60.0


@dataclass(frozen=True)
class KeptPoint:
    """A point that readers can stand at.

    Attributes:
        position: its LSN.
        committed: when the last transaction before it was committed, by the source's clock; for a lake
            that has only been copied, when the copy was made.
        published_ms: when readers could first see it, in milliseconds since 1970.
    """

    position: int
    committed: datetime
    published_ms: int


def readable_points(commits: Metadata) -> list[KeptPoint]:
    """The points that can be read, oldest first; the newest is the lake as it is."""
    oldest = past.oldest_readable(commits)
    older = [point for file in past.past_files(commits) for point in _points_of(file.metadata)]
    return [*(point for point in older if point.position >= oldest), *_newest_points(commits)]


def oldest_point(commits: Metadata) -> int | None:
    """The position of the oldest point that can be read."""
    points = [past.oldest_readable(commits)] if past.past_files(commits) else []
    points += [point.position for point in _newest_points(commits)]
    return min(points, default=None)


def _newest_points(commits: Metadata) -> list[KeptPoint]:
    """Those that need no look into a past file; the newest point among them, kept or not."""
    newest = catalog_metadata.newest_of_a_point(commits)
    points = [*_points_of(commits), *([_point(newest)] if newest else [])]
    return sorted({point.position: point for point in points}.values(), key=lambda point: point.position)


def _points_of(metadata: Metadata) -> list[KeptPoint]:
    return [_point(snapshot) for snapshot in past.point_snapshots(metadata)]


def _point(snapshot: Metadata) -> KeptPoint:
    summary = catalog_metadata.summary(snapshot)
    published = int(snapshot["timestamp-ms"])
    committed = summary.get(COMMITTED)
    return KeptPoint(
        parse_lsn(summary[catalog_metadata.LSN]),
        datetime.fromisoformat(committed) if committed else datetime.fromtimestamp(published / 1000, UTC),
        published,
    )


def positions_to_keep(commits: Metadata, position: int, changed: bool, keep: KeepPoints) -> list[int]:
    """Return the points to keep once another is published: the oldest of them, and all that are not past.

    Args:
        changed: whether the new point changed any table.
    """
    oldest_ms = time.time() * 1000 - keep.days * _DAY_MS
    points = _points_of(commits)
    tagged = {point.position for point in points}
    positions = [point.position for point in points if point.published_ms >= oldest_ms]
    some_too_old = len(positions) < len(points)
    if changed or position in tagged:
        positions = [*(p for p in positions if p != position), position]
    if some_too_old or len(positions) >= keep.count:
        return positions[-keep.count :]
    older = _oldest_past(past.past_files(commits), keep.count - len(positions), oldest_ms)
    return positions if older is None else [older, *positions]


def _oldest_past(files: Sequence[past.PastFile], count: int, oldest_ms: float) -> int | None:
    """The oldest kept one of the points in past files, of which so many, none older than this, are kept.

    Reads one file at most: that in which it is.
    """
    oldest = None
    for file in reversed(files):
        if file.points <= count and file.published_ms >= oldest_ms:
            oldest, count = file.first, count - file.points
            continue
        points = _points_of(file.metadata)[-count:] if count else []
        return next((point.position for point in points if point.published_ms >= oldest_ms), oldest)
    return oldest


def parse_at(text: str) -> int | datetime | None:
    """What ``--at`` says: an LSN, a moment (ISO 8601; UTC if it names no zone), or None for ``latest``.

    Raises:
        ValueError: it is none of these.
    """
    text = text.strip()
    if text.lower() == "latest":
        return None
    if "/" in text and ":" not in text and "-" not in text:
        return parse_lsn(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text[:40]!r} is neither an LSN (0/1A2B3C4D) nor a time (2024-05-01 12:00:00+00) nor 'latest'"
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def choose(commits: Metadata, name: LakeName, at: int | datetime) -> int:
    """Return the position of the newest kept point at or before an LSN or a moment.

    Args:
        at: the LSN as integer, or the moment by the source's clock.

    Raises:
        LakeError: it is in the future, or older than what the lake keeps.
    """
    points = _newest_points(commits)
    before = points[0].committed > at if isinstance(at, datetime) else points[0].position > at
    if before:  # files are opened for what is past only
        points = readable_points(commits)
    if isinstance(at, datetime):
        _require_past(at)
        reached = [point for point in points if point.committed <= at]
        requested = at.isoformat()
    else:
        _require_reached(points[-1], name, at)
        reached = [point for point in points if point.position <= at]
        requested = format_lsn(at)
    if not reached:
        first = points[0]
        raise LakeError(
            f"the lake keeps nothing as old as {requested}: its oldest point is {format_lsn(first.position)} "
            f"({first.committed.isoformat()})",
            where=f"table {name}",
            way_out="ask for a later one (its tags name them); lake.keep_points says how many are kept",
        )
    return reached[-1].position


def _require_reached(newest: KeptPoint, name: LakeName, lsn: int) -> None:
    if lsn > newest.position:
        raise LakeError(
            f"the lake has not reached {format_lsn(lsn)} yet: it stands at {format_lsn(newest.position)}",
            where=f"table {name}",
            way_out="sync first, or ask for an older position",
        )


def _require_past(moment: datetime) -> None:
    if moment.timestamp() > time.time() + _CLOCK_AHEAD_SECONDS:
        raise LakeError(
            f"{moment.isoformat()} is in the future",
            where=f"now it is {datetime.now(UTC).isoformat(timespec='seconds')}",
            way_out="ask for 'latest', or for a time in the past; a time without a zone is UTC",
        )
