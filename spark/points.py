"""Consistency points: which are kept, which one a reader means, and how a reader says it.

The tags of the table `commits` are the kept points: a tag's snapshot says in its summary which LSN it is
and when the last transaction before it was committed in the source.  A point that changed no table gets
no tag, so idle hours do not push out what was kept; the newest point can be read in any case.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from decoder.errors import LakeError
from decoder.lsn import format_lsn, parse_lsn
from spark import catalog_metadata, catalog_tags
from spark.catalog_metadata import Metadata
from spark.lake import KeepPoints
from spark.names import LakeName

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


def kept_points(commits: Metadata) -> list[KeptPoint]:
    """The points that can be read, oldest first; the newest is the lake as it is."""
    tagged = (catalog_metadata.snapshot(commits, id_) for id_ in catalog_tags.tags(commits).values())
    newest = catalog_metadata.newest_of_a_point(commits)
    points = [_point(snapshot) for snapshot in (*tagged, newest) if snapshot]
    return sorted({point.position: point for point in points}.values(), key=lambda point: point.position)


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
    """The points that are kept once another is published.

    Args:
        commits: the table `commits` before it.
        position: the new point's.
        changed: did it change any table?
    """
    oldest_ms = time.time() * 1000 - keep.days * _DAY_MS
    tagged = catalog_tags.tags(commits)
    held = [p.position for p in kept_points(commits) if p.position in tagged and p.published_ms >= oldest_ms]
    if changed or position in tagged:
        held = [*(p for p in held if p != position), position]
    return held[-keep.count :]


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
    """The position of the newest kept point at or before an LSN or a moment.

    Raises:
        LakeError: it is in the future, or older than what the lake keeps.
    """
    points = kept_points(commits)
    if isinstance(at, datetime):
        _require_past(at)
        reached = [point for point in points if point.committed <= at]
        asked = at.isoformat()
    else:
        _require_reached(points[-1], name, at)
        reached = [point for point in points if point.position <= at]
        asked = format_lsn(at)
    if not reached:
        first = points[0]
        raise LakeError(
            f"the lake keeps nothing as old as {asked}: its oldest point is {format_lsn(first.position)} "
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
            way_out="ask for 'latest', or for a time that has been; a time without a zone is UTC",
        )
