"""The swap: moves ``main`` of all tables that a point touched, and of `commits`, in one transaction.

A table is ready when its branch ``stage`` points at a snapshot whose summary names this very batch
and digest; apply puts that name on the last snapshot it makes of a table, so half a table is never
ready.  The same summary says how many snapshots lead from main to it: a statement that a killed run
left behind on a server, and that commits late, makes it one more, and the table is refused.

The next metadata file of each table is written first; then one SQL transaction moves all pointers,
each guarded by its old value.  Before it, readers see nothing of the batch, after it all.  The branch
``stage`` stays where it is then: at the new main, where the next batch needs it.  The tags of the kept
points stand in the same metadata file (spark/catalog/tags.py), so keeping points costs no commit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slotlake.decoder.errors import ApplyError, LakeError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.spark import lake_files
from slotlake.spark.catalog.base import Loaded, load
from slotlake.spark.catalog.open import Catalog, Move, PointerMovedError, open_catalog
from slotlake.spark.catalog.tags import tagged
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName, lake_table
from slotlake.spark.publish import aside
from slotlake.spark.publish.commits import (
    BATCH,
    DIGEST,
    LSN,
    RUN,
    STEPS,
    Point,
    commits_name,
    position_of,
    with_point,
)
from slotlake.spark.publish.derived_tables import SUFFIXES
from slotlake.spark.publish.past import with_past_files
from slotlake.spark.publish.points import positions_to_keep
from slotlake.spark.storage.location import Location
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN, STAGE, Metadata
from slotlake.spark.tables.schema import PIPELINE_PROPERTY, STAGED_SCHEMA_PROPERTY
from slotlake.spark.tables.settle import STAGED_FIELDS_PROPERTY, with_shape

__all__ = ["Loaded", "Published", "load"]
_NOTHING_STAGED: dict[str, str | None] = {STAGED_SCHEMA_PROPERTY: None, STAGED_FIELDS_PROPERTY: None}


class StagedOverError(LakeError):
    """Another run wrote to what is staged, perhaps one that was killed: its statement was still at work."""


@dataclass(frozen=True)
class Published:
    """A consistency point.

    Attributes:
        position: the lake's position after it.
        already: it had been published before; nothing was done.
        snapshots: lake table ("namespace.table") → snapshot id that is now main.
    """

    point: Point
    position: int
    already: bool
    snapshots: Mapping[str, int] = field(default_factory=dict)


def lake_position(lake: LakeSettings) -> int | None:
    """The position up to which the source is in the lake; None before the initial copy.

    Raises:
        LakeError: the lake cannot be read.
    """
    with open_catalog(lake) as catalog:
        name = commits_name(lake.namespace)
        pointers = catalog.pointers_of([name])
    return position_of(load(pointers, name).metadata, name) if name in pointers else None


def publish_tables(lake: LakeSettings, point: Point, tables: Sequence[LakeName], *, start: int) -> Published:
    """Publish what is staged of these tables as one consistency point. Needs no Spark.

    Args:
        start: the position that the lake must have now.

    Raises:
        LakeError: a table is not staged for this point, or was changed by someone else meanwhile.
        ApplyError: the lake stands elsewhere than at ``start``, and not at the point.
    """
    commits = commits_name(lake.namespace)
    with open_catalog(lake) as catalog:
        pointers = catalog.pointers_of([commits, *tables])
        before = load(pointers, commits)
        if is_published(before.metadata, commits, point):
            return Published(point, position_of(before.metadata, commits), already=True)
        require_position(before.metadata, commits, point, start)
        catalog_metadata.read_ahead(pointers.values(), whole=True)
        loaded = [load(pointers, name) for name in tables]
        staged = [_require_staged(table, point) for table in tables_behind(loaded, point, start)]
        snapshots = {t.name: catalog_metadata.ref(t.metadata, MAIN) or 0 for t in loaded}
        keep_positions = positions_to_keep(before.metadata, point.position, bool(tables), lake.keep)

        def commits_move(moves: Sequence[Move]) -> Move:
            snapshots.update(mains_after(moves))
            return point_move(catalog, before, point, snapshots, keep_positions)

        _swap(catalog, staged, commits_move, point, keep_positions)
    return Published(
        point, point.position, False, {str(name): snapshot for name, snapshot in snapshots.items()}
    )


def tables_behind(tables: Iterable[Loaded], point: Point, start: int) -> list[Loaded]:
    """Return the tables that a point has not reached yet.

    A table has reached it only where tables are published one after another and a run was killed in between;
    readers do not see the table there, because `commits` is behind.  A backfill never counts as reached: the
    same backfill, run again, replaces the rows again.

    Args:
        start: the position at which the point begins.

    Raises:
        ApplyError: a table is ahead of the lake, but not at this point.
    """
    return [table for table in tables if not _has_reached(table, point, start)]


def _has_reached(table: Loaded, point: Point, start: int) -> bool:
    newest = catalog_metadata.newest_of_a_point(table.metadata)
    summary = catalog_metadata.summary(newest)
    if (summary.get(BATCH), summary.get(DIGEST)) == (point.batch, point.digest):
        return point.kind != "backfill"
    if newest is not None and parse_lsn(summary[LSN]) > start:
        raise ApplyError(
            f"a table is at {summary[LSN]} already, ahead of the lake's {format_lsn(start)}",
            where=f"table {table.name}, batch {summary.get(BATCH)}",
            way_out="that batch was published in part, and is not the one that follows now: put it back into "
            "the change log, or copy the table again with `slotlake backfill --table`",
        )
    return False


def require_owner(table: Loaded, pipeline: str) -> None:
    """Require that a table is this pipeline's, before anything of it is changed.

    Raises:
        LakeError: it is not.
    """
    owner = table.metadata.get("properties", {}).get(PIPELINE_PROPERTY)
    if owner != pipeline:
        raise LakeError(
            "a lake table belongs to " + (f"pipeline {owner}" if owner else "someone else"),
            where=f"table {table.name}",
            way_out="give this pipeline a namespace of its own",
        )


def is_published(commits: Metadata, name: LakeName, point: Point) -> bool:
    """Return whether this point is in the lake, by the table `commits`.

    A backfill never is: the same backfill, run again, replaces the rows again.

    Raises:
        ApplyError: a batch of the same name but with other content was published.
    """
    if point.kind == "backfill":
        return False
    for snapshot in catalog_metadata.ancestry(commits):
        summary = catalog_metadata.summary(snapshot)
        if summary.get(BATCH) == point.batch:
            if summary.get(DIGEST) != point.digest:
                raise ApplyError(
                    "another batch of the same name is already in the lake",
                    where=f"batch {point.batch}, table {name}",
                    way_out="the change log was altered since; remove this batch and run again",
                )
            return True
    return point.kind == "batch" and position_of(commits, name) >= point.position


def require_position(commits: Metadata, name: LakeName, point: Point, start: int) -> None:
    """Require that the lake stands where this point begins.

    Args:
        start: the position at which the point begins.

    Raises:
        ApplyError: it stands elsewhere.
    """
    position = position_of(commits, name)
    if position != start:
        raise ApplyError(
            f"{point.kind} {point.batch} begins at {format_lsn(start)}, "
            f"but the lake stands at {format_lsn(position)}",
            where=f"table {name}",
            way_out="run `slotlake sync`: it pulls from where the lake stands; nothing was changed",
        )


def reset_stage(catalog: Catalog, tables: Iterable[Loaded]) -> None:
    """Point ``stage`` of each table at its ``main``, whatever a crashed attempt left there.

    Where nothing is to be changed, one file is looked for: a store that does not answer is noticed here,
    within limits.  Spark would ask for a table's metadata twenty times, nine times each.
    """
    tables = list(tables)
    changed: list[tuple[Loaded, Metadata]] = []
    for table in tables:
        metadata = catalog_metadata.with_ref(
            table.metadata, STAGE, catalog_metadata.ref(table.metadata, MAIN)
        )
        metadata = catalog.in_present(catalog_metadata.with_properties(metadata, _NOTHING_STAGED))
        if metadata != table.metadata:
            changed.append((table, metadata))
    if changed:
        with lake_files.side_by_side():
            moves = [catalog.prepared(table, metadata) for table, metadata in changed]
        catalog.move(moves)
    elif tables and Location(tables[0].location).is_in_bucket:
        lake_files.size(tables[0].location)


def _require_staged(table: Loaded, point: Point) -> Loaded:
    staged_head = (
        catalog_metadata.head(table.metadata, STAGE) if catalog_metadata.is_staged(table.metadata) else None
    )
    summary = catalog_metadata.summary(staged_head)
    if (summary.get(BATCH), summary.get(DIGEST), summary.get(LSN)) != (
        point.batch,
        point.digest,
        format_lsn(point.position),
    ):
        other_batch = None if summary.get(BATCH) == point.batch else summary.get(BATCH)
        raise LakeError(
            f"{point.kind} {point.batch} is not staged" + (f", but {other_batch} is" if other_batch else ""),
            where=f"table {table.name}",
            way_out="apply it again, then publish; nothing was published",
        )
    steps = steps_staged(table.metadata)
    staged = itertools.islice(catalog_metadata.ancestry(table.metadata, STAGE), steps)
    # Iceberg puts no property of ours on a DELETE of whole files.
    runs = {each.get(RUN) for each in map(catalog_metadata.summary, staged)} - {None}
    if steps != int(summary.get(STEPS, 1)) or len(runs) > 1:
        raise StagedOverError(
            "another run wrote to what is staged",
            where=f"table {table.name}",
            way_out="apply it again, then publish; nothing was published",
        )
    return table


def steps_staged(metadata: Metadata) -> int:
    """How many snapshots lead from main to what is staged."""
    base = catalog_metadata.ref(metadata, MAIN)
    chain = [s["snapshot-id"] for s in catalog_metadata.ancestry(metadata, STAGE)]
    return chain.index(base) if base in chain else len(chain)


def _swap(
    catalog: Catalog,
    staged: Sequence[Loaded],
    commits: Callable[[Sequence[Move]], Move],
    point: Point,
    keep_positions: Collection[int],
) -> None:
    """Make all moves at once, that of `commits` last of them."""
    moves: list[Move] = []
    try:
        with lake_files.side_by_side():
            moves.extend(_staged_move(catalog, table, point, keep_positions) for table in staged)
            moves.append(commits(moves))
        reach("publish.before_swap")
        catalog.move(moves)
    except PointerMovedError:
        # Only then is it certain that nothing leads to what was prepared.
        catalog.forget(moves)
        raise
    reach("publish.after_swap")


def mains_after(moves: Iterable[Move]) -> dict[LakeName, int]:
    """The snapshot that each table has as its main after its move."""
    return {move.name: catalog_metadata.ref(move.metadata, MAIN) or 0 for move in moves}


def staged_move(catalog: Catalog, table: Loaded, point: Point, keep_positions: Collection[int]) -> Move:
    """Return the move that makes what is staged of a table its content.

    Args:
        keep_positions: the positions of the points that are kept from then on.

    Raises:
        LakeError: it is not staged for this point.
    """
    return _staged_move(catalog, _require_staged(table, point), point, keep_positions)


def _staged_move(catalog: Catalog, table: Loaded, point: Point, keep_positions: Collection[int]) -> Move:
    """The move that makes what is staged of a table its content."""
    metadata = tagged(
        _with_main_moved(table.metadata, point.position, keep_positions),
        table.metadata,
        point.position,
        keep_positions,
    )
    oldest = min(keep_positions, default=point.position)
    return catalog.prepared(table, with_past_files(metadata, oldest, catalog.lake.unused_seconds))


def point_move(
    catalog: Catalog,
    commits: Loaded,
    point: Point,
    snapshots: Mapping[LakeName, int],
    keep_positions: Collection[int],
    record: aside.Record | None = None,
    without: Collection[LakeName] = (),
) -> Move:
    """Return the move that adds a point's row to `commits`.

    Args:
        commits: the table `commits`.
        snapshots: lake table → its snapshot at the point, of tables that the point changes.
        keep_positions: the positions of the points that are kept from then on.
        record: the tables that are not simply followed from then on; None: those of before, without what
            is published.
        without: tables that the point has no more, though the catalog still has them.
    """
    existing = catalog.own_names(catalog_metadata.ref(commits.metadata, MAIN))
    existing = existing - set(without) if without else existing
    before = aside.Record.of(commits.metadata)
    entries = (before if record is None else record).entries
    aside_tables = {lake_table(commits.name.namespace, *name) for name in entries}

    def may_leave(name: LakeName) -> bool:
        # Else nothing would tell any more that a mirror was there, and what it lacks when it comes back.
        return (
            name in without or name in aside_tables or name.table.lower().endswith(tuple(SUFFIXES.values()))
        )

    metadata = with_point(catalog.lake.memory, commits, point, snapshots, existing, may_leave)
    remaining = before.published(commits.name.namespace, snapshots) if record is None else record
    if remaining != before:
        metadata = remaining.written_to(metadata)
    metadata = tagged(metadata, commits.metadata, point.position, keep_positions)
    metadata = with_past_files(metadata, min(keep_positions, default=point.position))
    return catalog.prepared(commits, catalog_metadata.without_unreferenced(metadata))


def _with_main_moved(metadata: Metadata, position: int, keep_positions: Collection[int]) -> Metadata:
    """Main moved to what is staged, with the shape that came with it."""
    moved = catalog_metadata.with_ref(metadata, MAIN, catalog_metadata.ref(metadata, STAGE))
    moved = catalog_metadata.with_properties(moved, {aside.ASIDE_PROPERTY: None})
    return with_shape(moved, position, keep_positions)
