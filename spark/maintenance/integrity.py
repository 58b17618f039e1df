"""Checks whether the lake is as slotlake left it: tables at their newest point, with all their files.

The newest row of `commits` names the snapshot of every table.  A table is whole if its main is that snapshot,
or compactions on top of it.  Every other state has a name: *rolled back* (the snapshot is there, but main is
elsewhere), *written* (main leads to it through a commit that is no compaction), *lost* (the snapshot is
gone), *damaged* (a file is missing), and of `commits` itself *rolled back*.

Most damage is repaired by moving main to where it was: that copies nothing, and changes nothing that slotlake
wrote.  Invariant: a check changes nothing; a repair moves pointers only, all in one catalog transaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slotlake.decoder.lsn import parse_lsn
from slotlake.spark.catalog.base import Loaded, load, load_all
from slotlake.spark.catalog.listing import Listing
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.unreadable import unreadable
from slotlake.spark.names import LakeName, belongs
from slotlake.spark.publish.absent import GONE
from slotlake.spark.publish.commits import BATCH, LSN, STEPS, commits_name, pins_of
from slotlake.spark.publish.derived_tables import SUFFIXES
from slotlake.spark.publish.pins import Pins
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN, STAGE, Metadata
from slotlake.spark.tables.schema import PIPELINE_PROPERTY, SCHEMA_PROPERTY, schema_of

ROLLED_BACK, WRITTEN, LOST, DAMAGED, MISSING = "rolled back", "written", "lost", "damaged", "missing"


@dataclass(frozen=True)
class _Whole:
    """What was whole at the last look at all tables of a lake.

    Attributes:
        pipeline: whose tables these are.
        doubtful: the tables that were not, or of which it may not be remembered.
    """

    pipeline: str
    listing: Listing
    pins: Pins
    doubtful: frozenset[LakeName]


@dataclass(frozen=True)
class Damage:
    """Something that is not as slotlake left it.

    Attributes:
        kind: ROLLED_BACK, WRITTEN, LOST, DAMAGED or MISSING (the catalog has no such table of ours any more).
        what: in words, with the table's name.
        snapshot: where its main belongs, if that is there.
        position: of `commits`, where the lake stands once it is mended.
    """

    kind: str
    table: LakeName
    what: str
    snapshot: int | None = None
    position: int | None = None

    @property
    def is_derived(self) -> bool:
        """Whether it is a derived table."""
        return self.table.table.lower().endswith(tuple(SUFFIXES.values()))


def find_damage(
    lake: LakeSettings,
    pipeline: str,
    *,
    files: bool = False,
    as_written: bool = False,
    only: Collection[LakeName] | None = None,
) -> list[Damage]:
    """What is wrong with the lake's tables; nothing if all is as it was left.

    Args:
        files: also see that every data file is there, which takes a look at each.
        as_written: what this process has written into `commits` is not read again.
        only: look at these tables only, and read each anew.

    Raises:
        LakeError: the catalog cannot be reached, or `commits` cannot be read.
    """
    with open_catalog(lake) as catalog:
        name = commits_name(lake.namespace)
        location = catalog.pointer(name)
        if location is None:
            return []
        commits = Loaded(name, location, catalog_metadata.load(location))
        damages = list(_commits_damage(commits))
        if damages:
            return damages  # the others are to be judged by a row that is not the newest
        pins = pins_of(commits, lake.memory if as_written else None)
        position = catalog_metadata.newest_position(commits.metadata) or 0
        if only is None:
            listing = catalog.listing()
            pointers = listing.pointers
            damages += _damages_of_all(lake, pipeline, listing, pins, position)
        else:
            chosen = [table for table in only if table in pins]
            pointers = catalog.pointers_of(chosen)
            owner = (pipeline, lake.namespace)
            damages += _damages(owner, pointers, {table: pins[table] for table in chosen}, position)[0]
        if files:
            undamaged = {table: table in pointers for table in pins} | {each.table: False for each in damages}
            damages += [
                d for t in sorted(undamaged) if undamaged[t] for d in _missing_files(load(pointers, t))
            ]
    return damages


def _damages_of_all(
    lake: LakeSettings, pipeline: str, listing: Listing, pins: Pins, position: int
) -> list[Damage]:
    """Of the tables that are not what they were when they were whole: a metadata file never changes."""
    whole = lake.memory.get(_Whole)
    whole = whole if whole is not None and whole.pipeline == pipeline else None
    moved = None if whole is None else listing.changed_since(whole.listing)
    pinned = None if whole is None else pins.changed_since(whole.pins)
    if whole is None or moved is None or pinned is None:
        chosen = [table for table in pins if belongs(table.namespace, lake.namespace)]
    else:
        chosen = [table for table in whole.doubtful.union(moved, pinned) if table in pins]
    owner = (pipeline, lake.namespace)
    damages, doubtful = _damages(owner, listing.pointers, {table: pins[table] for table in chosen}, position)
    lake.memory.put(_Whole(pipeline, listing, pins, doubtful))
    return damages


def _damages(
    owner: tuple[str, str], pointers: Mapping[LakeName, str], pins: Mapping[LakeName, int], position: int
) -> tuple[list[Damage], frozenset[LakeName]]:
    """What is wrong with tables that are to have these snapshots; and those to be looked at again."""
    catalog_metadata.read_ahead(pointers[table] for table in pins if table in pointers)
    all_damages: list[Damage] = []
    doubtful = set()
    for table in sorted(pins):
        damages = list(_table_damage(pointers, table, (pins[table], position), owner))
        all_damages += damages
        top = {} if damages else catalog_metadata.load_top(pointers[table])
        if damages or (catalog_metadata.newest_position(top) or 0) > position:
            doubtful.add(table)
    return all_damages, frozenset(doubtful)


def _commits_damage(commits: Loaded) -> Iterator[Damage]:
    """Its own newest snapshot is not its main, or somebody wrote on top of it."""
    points = [s for s in commits.metadata.get("snapshots", ()) if LSN in catalog_metadata.summary(s)]
    main = catalog_metadata.newest_of_a_point(commits.metadata)
    newest = max(points, key=lambda s: int(s.get("sequence-number", 0)), default=None)
    if newest is None:
        return
    lsn, id_ = catalog_metadata.summary(newest)[LSN], int(newest["snapshot-id"])
    if main is None or int(main["snapshot-id"]) != id_:
        at = catalog_metadata.summary(main).get(LSN, "no point at all")
        what = f"{commits.name} was rolled back by hand to {at}; it had reached {lsn}"
        yield Damage(ROLLED_BACK, commits.name, what, id_, parse_lsn(lsn))
    elif _foreign(catalog_metadata.ancestry(commits.metadata), id_):
        what = f"{commits.name} holds a commit that slotlake did not make"
        yield Damage(WRITTEN, commits.name, what, id_, parse_lsn(lsn))


def _foreign(chain: Sequence[Metadata], pin: int) -> int:
    """How many snapshots on top of a table's own are neither compactions nor a point's.

    A backfill that was ended half-way, where tables are published one after another, leaves a table at its
    point though `commits` does not name it: the rows are the source's at the very position.
    """
    above = itertools.takewhile(lambda snapshot: snapshot["snapshot-id"] != pin, chain)
    count = steps = 0
    for summary in map(catalog_metadata.summary, above):
        steps = int(summary.get(STEPS, 1)) if LSN in summary else steps
        count += not steps and summary.get("operation") != "replace"
        steps -= steps > 0
    return count


def _table_damage(
    pointers: Mapping[LakeName, str], name: LakeName, point: tuple[int, int], owner: tuple[str, str]
) -> Iterator[Damage]:
    """Of one table, whose snapshot and position are to be these; ``owner``: pipeline and namespace."""
    pin, position = point
    if name not in pointers:
        yield Damage(MISSING, name, f"{name} {GONE}")
        return
    top = catalog_metadata.load_top(pointers[name])
    if other := _other_owner(top, name, owner):
        yield Damage(MISSING, name, f"{name} was replaced by {other}, or that was given its name")
        return
    # Published by a run that has not reached `commits` yet, or ended before it: the next one goes on.
    if (catalog_metadata.newest_position(top) or 0) > position:
        return
    chain = catalog_metadata.ancestry(top)
    if chain and chain[-1]["snapshot-id"] == pin and not _foreign(chain, pin):
        return
    metadata = load(pointers, name).metadata
    chain = catalog_metadata.ancestry(metadata)
    if pin not in [snapshot["snapshot-id"] for snapshot in chain]:
        if catalog_metadata.snapshot(metadata, pin) is None:
            yield Damage(LOST, name, f"the snapshot {pin} of {name}, its newest, was removed by hand")
        else:
            yield Damage(ROLLED_BACK, name, f"{name} was rolled back by hand", pin)
    elif count := _foreign(chain, pin):
        many = f"{count} commits" if count > 1 else "a commit"
        yield Damage(WRITTEN, name, f"{name} holds {many} that slotlake did not make", pin)


def _other_owner(top: Metadata, name: LakeName, owner: tuple[str, str]) -> str:
    """What a table is, if it is not the one that has this name in the lake; "" if it is."""
    pipeline, namespace = owner
    properties = top["properties"]
    if properties.get(PIPELINE_PROPERTY) != pipeline:
        return "a table that is not this pipeline's"
    if SCHEMA_PROPERTY not in properties:
        return ""
    mirror = schema_of(top, name)
    return "" if mirror.lake_name(namespace) == name else f"the lake table of {mirror.source_name}"


def _missing_files(table: Loaded) -> Iterator[Damage]:
    for what, _ in unreadable(table):
        yield Damage(DAMAGED, table.name, what)


def newest_batch(lake: LakeSettings) -> str | None:
    """The name of the newest point: a batch's, or what else led to it."""
    with open_catalog(lake) as catalog:
        name = commits_name(lake.namespace)
        location = catalog.pointer(name)
    if location is None:
        return None
    newest = catalog_metadata.newest_of_a_point(catalog_metadata.load(location))
    return catalog_metadata.summary(newest).get(BATCH)


def repair_damage(lake: LakeSettings, damages: list[Damage]) -> list[str]:
    """Move main of tables that were rolled back, or written to, to where it was; what was done, a line each.

    Raises:
        LakeError: someone else changed a table meanwhile; nothing was moved.
    """
    repairable = [each for each in damages if each.snapshot is not None]
    with open_catalog(lake) as catalog:
        tables = load_all(catalog, [each.table for each in repairable])
        moves = []
        for each in repairable:
            table = tables[each.table]
            if catalog_metadata.ref(table.metadata, MAIN) == each.snapshot:
                continue  # it was done already
            moved = catalog_metadata.with_ref(table.metadata, MAIN, each.snapshot)
            moves.append(catalog.prepared(table, catalog_metadata.with_ref(moved, STAGE, None)))
        catalog.move(moves)
    return [f"moved {each.table} back to snapshot {each.snapshot}" for each in repairable]
