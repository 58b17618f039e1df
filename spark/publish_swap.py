"""The swap: moves ``main`` of all tables that a point touched, and of `commits`, in one transaction.

A table is ready when its branch ``stage`` points at a snapshot whose summary names this very batch
and digest; apply puts that name on the last snapshot it makes of a table, so half a table is never
ready.  The same summary says how many snapshots lead from main to it: a statement that a killed run
left behind on a server, and that commits late, makes it one more, and the table is refused.

The next metadata file of each table is written first; then one SQL transaction moves all pointers,
each guarded by its old value.  Before it, readers see nothing of the batch, after it all.  The branch
``stage`` is dropped in the same step: what is staged and what is published stay apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from decoder.errors import ApplyError, LakeError
from decoder.failpoints import reach
from decoder.lsn import format_lsn
from spark import catalog_metadata, lake_files
from spark.catalog import Catalog, Move, PointerMovedError, open_catalog
from spark.catalog_metadata import MAIN, STAGE, Metadata
from spark.commits import BATCH, DIGEST, LSN, STEPS, Point, append_point, commits_name, position_of
from spark.lake import LakeSettings
from spark.names import LakeName
from spark.tables import PIPELINE_PROPERTY, SCHEMA_PROPERTY, STAGED_SCHEMA_PROPERTY


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


@dataclass(frozen=True)
class Loaded:
    """A table as the catalog points at it now."""

    name: LakeName
    location: str
    metadata: Metadata


def load(pointers: Mapping[LakeName, str], name: LakeName) -> Loaded:
    """Read a table's present metadata.

    Raises:
        LakeError: the catalog has no such table.
    """
    location = pointers.get(name)
    if location is None:
        raise LakeError(
            "the lake lacks a table",
            where=f"table {name}",
            way_out="run `slotlake init` first, or see that lake.namespace is the one it was run with",
        )
    return Loaded(name, location, catalog_metadata.load(location))


def lake_position(lake: LakeSettings) -> int | None:
    """The position up to which the source is in the lake; None before the initial copy.

    Raises:
        LakeError: the lake cannot be read.
    """
    with open_catalog(lake) as catalog:
        pointers = catalog.pointers()
    name = commits_name(lake.namespace)
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
        pointers = catalog.pointers()
        before = load(pointers, commits)
        if is_published(before.metadata, commits, point):
            return Published(point, position_of(before.metadata, commits), already=True)
        require_position(before.metadata, commits, point, start)
        staged = [_staged(load(pointers, name), point) for name in tables]
        snapshots = {table.name: catalog_metadata.ref(table.metadata, STAGE) or 0 for table in staged}
        staged.append(stage_point(catalog, before, point, snapshots))
        _swap(catalog, staged)
    return Published(
        point, point.position, False, {str(name): snapshot for name, snapshot in snapshots.items()}
    )


def require_owner(table: Loaded, pipeline: str) -> None:
    """A table must be this pipeline's before anything of it is changed.

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
    """Is this point in the lake, by the commits table?

    A backfill never is: asked for again, it replaces the rows again, whatever they have become.

    Raises:
        ApplyError: a batch of the same name but other content was published.
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
    """The lake must stand where this point begins.

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
    """Point ``stage`` of each table at its ``main``, whatever a crashed attempt left there."""
    moves = []
    for table in tables:
        metadata = catalog_metadata.with_ref(
            table.metadata, STAGE, catalog_metadata.ref(table.metadata, MAIN)
        )
        metadata = catalog_metadata.with_properties(metadata, {STAGED_SCHEMA_PROPERTY: None})
        if metadata != table.metadata:
            moves.append(move_to(table, metadata))
    catalog.move(moves)


def _staged(table: Loaded, point: Point) -> Loaded:
    summary = catalog_metadata.summary(catalog_metadata.head(table.metadata, STAGE))
    if (summary.get(BATCH), summary.get(DIGEST), summary.get(LSN)) != (
        point.batch,
        point.digest,
        format_lsn(point.position),
    ):
        found = None if summary.get(BATCH) == point.batch else summary.get(BATCH)
        raise LakeError(
            f"{point.kind} {point.batch} is not staged" + (f", but {found} is" if found else ""),
            where=f"table {table.name}",
            way_out="apply it again, then publish; nothing was published",
        )
    if steps_staged(table.metadata) != int(summary.get(STEPS, 1)):
        raise LakeError(
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


def stage_point(catalog: Catalog, commits: Loaded, point: Point, snapshots: Mapping[LakeName, int]) -> Loaded:
    """Write the point's row into the branch ``stage`` of `commits`."""
    reset_stage(catalog, [commits])
    append_point(catalog.iceberg, commits.name, point, snapshots, STAGE)
    staged = load(catalog.pointers(), commits.name)
    return _staged(staged, point)


def _swap(catalog: Catalog, staged: Sequence[Loaded]) -> None:
    moves: list[Move] = []
    try:
        moves.extend(staged_move(table) for table in staged)
        reach("publish.before_swap")
        catalog.move(moves)
    except PointerMovedError:
        # Only then is it certain that no pointer leads to these files.
        lake_files.remove([move.new for move in moves])
        raise
    reach("publish.after_swap")


def staged_move(table: Loaded) -> Move:
    """The move that makes what is staged of a table its content."""
    return move_to(table, _published(table.metadata))


def _published(metadata: Metadata) -> Metadata:
    """Main moved to what is staged, with the shape that came with it."""
    moved = catalog_metadata.with_ref(metadata, MAIN, catalog_metadata.ref(metadata, STAGE))
    shape = metadata.get("properties", {}).get(STAGED_SCHEMA_PROPERTY)
    properties: dict[str, str | None] = {STAGED_SCHEMA_PROPERTY: None}
    if shape is not None:
        properties[SCHEMA_PROPERTY] = shape
    return catalog_metadata.with_ref(catalog_metadata.with_properties(moved, properties), STAGE, None)


def move_to(table: Loaded, metadata: Metadata, rename: LakeName | None = None) -> Move:
    """Write a table's next metadata; the move that would make it the table's."""
    return Move(table.name, table.location, catalog_metadata.write_next(metadata, table.location), rename)
