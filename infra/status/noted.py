"""One look at a pipeline: its status, the sizes of its tables, and its newest points, noted in the journal.

A look asks the source once and reads the lake's metadata. Pages show the last look and ask nobody.
Invariant: a look takes no lock and changes neither side; if a side cannot be reached, the look says so.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slotlake.decoder.errors import LakeError, SlotlakeError
from slotlake.decoder.lsn import format_lsn
from slotlake.infra.config.private_files import with_private_files
from slotlake.infra.state.events import note_look
from slotlake.infra.state.recorded import last_look
from slotlake.infra.state.verified import read_verified
from slotlake.infra.status.overview import overview
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.read.pinned import Pinned
    from slotlake.spark.read.point import ReadPoint

_POINTS_MAX = 100
_EXACT_SECONDS_MAX = 2.0
_AGAIN_SECONDS = 60.0
_NEWS_SECONDS = 300.0  # as often as the monitor looks by default
_TOTALS = {
    "bytes": "total-files-size",
    "files": "total-data-files",
    "delete_files": "total-delete-files",
}


@with_private_files
def look(pipeline: OpenPipeline) -> dict[str, Any]:
    """Look at source and lake, note what was seen, and return it.

    Returns:
        ``time`` (seconds since 1970), ``status`` (a status report), ``tables`` (lake facts by source table),
        ``points`` (the newest kept points, the oldest first), ``points_kept`` (how many points are kept).
    """
    report = overview(pipeline)
    seen: dict[str, Any] = {"time": time.time(), "status": report.as_dict()}
    seen |= {"tables": {}, "points": [], "points_kept": 0}
    if report.last_consistent_lsn is not None:
        before = last_look(pipeline.file.state_dir).get("tables", {})
        with suppress(LakeError):  # the lake was reachable a moment ago; what is missing is not shown
            seen |= _lake_facts(pipeline.lake, before)
    note_look(pipeline.file.state_dir, seen)
    return seen


def look_again(
    pipeline: OpenPipeline,
    *,
    repaired: bool = False,
    tells: bool = False,
    aside: Collection[str] | None = None,
) -> dict[str, Any] | None:
    """Look again where the last look says that something is wrong, since it may be right now.

    At most once a minute, because an alarm may last for days, and a look at very many tables takes seconds.

    Args:
        repaired: something was repaired, so look in any case, if anybody ever did.
        tells: somebody is to hear of it, so look also if there is news, or after some minutes.
        aside: the tables that are set aside now; None: not known.

    Returns:
        What was seen; None without a look.
    """
    seen = last_look(pipeline.file.state_dir)
    last, age = seen.get("status"), time.time() - seen.get("time", 0.0)
    is_due = last is not None and (last["alarms"] or last["state"] != "ready") and age >= _AGAIN_SECONDS
    with suppress(SlotlakeError, OSError):  # what was done is done; the monitor's look says what is wrong
        if is_due or (repaired and last is not None) or (tells and _is_news(pipeline, last, age, aside)):
            return look(pipeline)
    return None


def _is_news(
    pipeline: OpenPipeline, last: Mapping[str, Any] | None, age: float, aside: Collection[str] | None
) -> bool:
    """Return whether a look would show something else than the last one, as far as is known here."""
    if last is None or age >= _NEWS_SECONDS:
        return True
    different = sorted(read_verified(pipeline.file.state_dir)["open"])
    if different != ((last.get("verification") or {}).get("different") or []):
        return True
    known = {postgres_name(each["schema"], each["table"]) for each in last["set_aside"]}
    return aside is not None and known != set(aside)


def _lake_facts(lake: LakeSettings, before: Mapping[str, Any]) -> dict[str, Any]:
    from slotlake.spark.publish.points import readable_points
    from slotlake.spark.publish.position import commits_name
    from slotlake.spark.read.point import ReadPoint

    point = ReadPoint.latest(lake)
    readable = readable_points(point.pinned[commits_name(lake.namespace)].metadata)
    newest = readable[-_POINTS_MAX:]
    above = newest[0].position - 1 if newest else None
    counts = {row["position"]: row for row in point.commits(above, pins=False)}
    points = [
        {
            "lsn": format_lsn(each.position),
            "committed": each.committed.timestamp(),
            "published": each.published_ms / 1000,
            **{name: counts.get(each.position, {}).get(name) for name in ("kind", "transactions", "changes")},
        }
        for each in newest
    ]
    return {"tables": _tables(point, before), "points": points, "points_kept": len(readable)}


def _tables(point: ReadPoint, before: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The facts of all tables; those of a table whose metadata is the file of the last look are not read."""
    began = time.monotonic()
    tables = {}
    for table in point.tables():
        pinned = point.pinned[point.find(table.source_name)]
        file = pinned.pointer.rpartition("/")[2]
        known = before.get(table.source_name, {})
        if known.get("metadata") == file and known.get("exact_texts") is not None:
            tables[table.source_name] = known
            continue
        facts = {**table_facts(pinned), "metadata": file}
        if time.monotonic() - began < _EXACT_SECONDS_MAX:
            facts["exact_texts"] = _exact_texts(pinned)
        tables[table.source_name] = facts
    return tables


def table_facts(pinned: Pinned) -> dict[str, Any]:
    """Return what the metadata of a lake table says: rows, bytes, files, delete files, its last change."""
    from slotlake.spark.tables import metadata as tables_metadata
    from slotlake.spark.tables.settle import past_shapes

    totals = tables_metadata.summary(pinned.snapshot)
    changed = tables_metadata.newest_of_a_point(pinned.metadata)
    sizes = {name: int(totals[key]) if key in totals else None for name, key in _TOTALS.items()}
    return {
        "rows": tables_metadata.live_rows(pinned.snapshot),
        **sizes,
        "last_change": None if changed is None else changed["timestamp-ms"] / 1000,
        "schema_changes": max(0, len(past_shapes(pinned.metadata)) - 1),
        "exact_texts": None,
    }


def _exact_texts(pinned: Pinned) -> int | None:
    """How many values have their text in a column of its own, because the typed column cannot hold them."""
    from slotlake.spark.read.scan import filled_counts
    from slotlake.spark.tables.schema import COLUMNS_COUNTED

    if len(pinned.field_ids) > COLUMNS_COUNTED:
        return None
    ids = {
        pinned.field_ids[column.exact_name]
        for column in pinned.shape.live
        if column.exact and column.exact_name in pinned.field_ids
    }
    if not ids or pinned.snapshot is None:
        return 0
    counts = filled_counts(pinned.location, int(pinned.snapshot["snapshot-id"]), ids)
    known = [count for count in counts.values() if count is not None]
    return sum(known) if len(known) == len(counts) else None
