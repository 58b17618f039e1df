"""Tables that join the publication later: each is copied over several syncs, the others go on meanwhile.

At each pull ranges of joining tables are copied for a bounded time (`source.copy_seconds_per_sync`); what is
short enough joins at once (`infra.sync.over_syncs`; docs/adr/0025).  They are out of sight until they are
whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from slotlake.decoder.catalog.membership import adding, alter_publications, memberships
from slotlake.decoder.catalog.publications import SourceTable, check_publications, source_tables
from slotlake.decoder.catalog.remembered_fingerprints import RememberedNames
from slotlake.decoder.errors import SourceError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.copy.copying import Attempt
from slotlake.infra.copy.joining_record import JOINING_FOLDER, joining_table_names
from slotlake.infra.copy.tables import Copied, TableCopies
from slotlake.infra.selection.absent import record_taken_away
from slotlake.infra.selection.aside import require_columns
from slotlake.infra.selection.file_tables import (
    Name,
    adds_by_itself,
    file_findings,
    newly_named,
    note_names,
    noted_names,
    target_publication,
)
from slotlake.infra.selection.layouts import require_layouts
from slotlake.infra.selection.tables import lake_selections, selected
from slotlake.infra.state.notes import SETTLING
from slotlake.infra.sync.over_syncs import OverSyncs
from slotlake.infra.sync.schema.large_tables import resumable_by_size
from slotlake.infra.sync.settling import note_publications, open_writers_by_table
from slotlake.spark.names import parse_postgres_name, postgres_name
from slotlake.spark.publish.lives import Event, Life

if TYPE_CHECKING:
    from slotlake.decoder.server.source import SourceSettings
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.progress import Progressing
    from slotlake.spark.names import LakeName
    from slotlake.spark.read.point import ReadPoint


@dataclass(frozen=True)
class Joined:
    """What became of tables that join.

    Attributes:
        tables: those that are whole, and published in the lake, as PostgreSQL writes them.
        warnings: what the pipeline file names, and publications or lake do not have.
    """

    tables: list[str]
    warnings: list[str]


class JoiningTables(OverSyncs):
    """Tables that the lake lacks."""

    folder, settling, waits = JOINING_FOLDER, SETTLING, "it was published"

    def add_new_tables(self, progress: Progressing) -> Joined:
        """Publish what the pipeline file names newly, and copy what there is time for of tables that joined.

        A table that cannot begin because of open transactions is left to the next run.
        """
        from slotlake.spark.read.point import ReadPoint

        point = ReadPoint.latest(self._pipeline.lake)
        new_tables, warnings, published = self._new_tables(point)
        self._give_up_other_tables(new_tables, progress)
        note_publications(self._pipeline, new_tables)
        added: list[str] = []
        taken: Collection[Name] = set()
        if new_tables:
            taken = record_taken_away(self._pipeline, new_tables)
            ranged = resumable_by_size(self._pipeline.source, new_tables)
            at_once = [t for t in new_tables if t not in ranged]
            added = self.copy_some(ranged, at_once, progress)
        added_names = {*map(parse_postgres_name, added)}
        others = {*added_names, *taken, *point.aside}
        self._note_lives(point, {(t.schema, t.table) for t in new_tables} - others, added_names)
        in_lake = point.all_mirrors.by_source_name.keys() | point.aside.keys() | added_names
        if _has_names(self._pipeline.file):
            note_names(self._pipeline.file, in_lake, published)
        return Joined(added, warnings)

    def give_up(self, relation_ids: Collection[int] | None = None) -> list[str]:
        """Remove what half copied tables have left, of all or of these OIDs; return the tables."""
        from slotlake.spark.publish.aside_write import note_joining

        given_up = self._give_up(relation_ids)
        if given_up:
            note_joining(
                self._pipeline.lake, dict.fromkeys(map(parse_postgres_name, given_up), Event.GIVEN_UP)
            )
        return given_up

    def lives(self) -> dict[Name, Life]:
        """The lives of tables that join, by what this pipeline's state folder has of them."""
        waiting = map(parse_postgres_name, open_writers_by_table(self._pipeline.file.state_dir))
        begun = joining_table_names(self._pipeline)
        return dict.fromkeys(waiting, Life.SETTLING) | dict.fromkeys(begun, Life.COPYING)

    def _note_lives(self, point: ReadPoint, joining: Collection[Name], added: Collection[Name]) -> None:
        """Write into the lake which tables join, if that is other than when the sync began.

        Args:
            point: the lake when the sync began.
            joining: the tables that join after this sync.
            added: those that do not any more, because they are published.
        """
        from slotlake.spark.publish.aside_write import note_joining

        begun = joining_table_names(self._pipeline) if joining else set()
        now = {name: Life.COPYING if name in begun else Life.SETTLING for name in joining}
        events = {
            name: Event.BEGINS if life == Life.COPYING else Event.WAITS
            for name, life in now.items()
            if point.lives.get(name) != life
        }
        events |= {
            name: Event.GIVEN_UP
            for name, life in point.lives.items()
            if life.joins and name not in now and name not in added
        }
        # Else nothing is asked of the catalog: most syncs have nothing that joins.
        if events:
            note_joining(self._pipeline.lake, events)

    def _new_tables(self, point: ReadPoint) -> tuple[list[SourceTable], list[str], Collection[Name] | None]:
        """Return published tables that the lake lacks and the file wants, warnings, and what is published.

        The file wants all that were there at `init`, and set aside because they changed under their copy.
        """
        ignores, has_names = self._pipeline.file.new_tables == "ignore", _has_names(self._pipeline.file)
        changed = {name for name, entry in point.aside.items() if entry.joins}
        if ignores and not has_names and not changed:
            return [], [], None
        aside = point.aside.keys() - changed
        source, remembered = self._pipeline.source, self._pipeline.memory.of(RememberedNames)
        mirrors = point.all_mirrors.by_source_name
        with source_session(source.dsn, "reading the publications") as connection:
            check_publications(connection, source.publications)
            named = (
                newly_named(self._pipeline.file, connection).difference(mirrors, aside)
                if has_names
                else frozenset[Name]()
            )
            troubles = (
                _publish(self._pipeline.file.state_dir, self._pipeline.source, connection, named)
                if named
                else {}
            )
            new_names = remembered.others(connection, source.publications, mirrors).difference(aside)
            published = remembered.names(connection, source.publications) if has_names else None
            wanted = new_names & (named | changed) if ignores else new_names
            new_tables = self._as_taken(connection, wanted)
            warnings = []
            if has_names:
                in_lake = mirrors.keys() | point.aside.keys()
                findings = file_findings(self._pipeline, connection, in_lake, published)
                warnings = [troubles.get(each.table, each.warning) for each in findings]
        require_columns(new_tables)
        require_layouts(self._pipeline.file, new_tables)
        return new_tables, warnings, published

    def _as_taken(self, connection: psycopg.Connection[Any], names: Collection[Name]) -> list[SourceTable]:
        """Return published tables, as far as the lake takes them; in most pulls nothing is new."""
        if not names:
            return []
        joining = source_tables(connection, self._pipeline.source.publications, names)
        return selected(self._pipeline.file, connection, joining, lake_selections(self._pipeline.memory))

    def _give_up_other_tables(self, tables: Sequence[SourceTable], progress: Progressing) -> None:
        """Give up copies that cannot be continued, and those of other tables than these."""
        self._give_up_others({t.relation_id: (t.schema, t.table) for t in tables}, progress)

    def _copy(
        self,
        tables: Sequence[SourceTable],
        snapshot: ExportedSnapshot,
        progress: Progressing,
        attempt: Attempt,
    ) -> Copied:
        return TableCopies(self._pipeline).copy_all(tables, snapshot, progress, attempt)

    def _clear(self, names: Sequence[LakeName]) -> None:
        from slotlake.spark.catalog.open import open_catalog
        from slotlake.spark.publish.place import clear_leftovers

        with open_catalog(self._pipeline.lake) as catalog:
            clear_leftovers(catalog, self._pipeline.name, names)


def _has_names(file: PipelineFile) -> bool:
    """Return whether the pipeline file names tables, or did."""
    return bool(file.tables or noted_names(file))


def _publish(
    state_dir: Path, source: SourceSettings, connection: psycopg.Connection[Any], named: Collection[Name]
) -> dict[str, str]:
    """Add tables that the file names newly to the publication that `init` made, as far as the role may.

    Returns:
        The tables, as PostgreSQL writes them, that the server refused, each with why and the way out.
    """
    target, troubles = target_publication(state_dir, source, connection), {}
    at_source = memberships(connection, source.publications, named)
    for name, each in sorted(at_source.items()):
        if target is None or each.obstacle or each.is_published:
            continue
        if adds_by_itself(state_dir, source, target[0], each, is_own=target[1]):
            try:
                alter_publications(connection, {adding(target[0], [name]): name})
            except SourceError as error:
                table = postgres_name(*name)
                troubles[table] = f"the pipeline file names {table}, and {error.what}: {error.way_out}"
            reach("named.published")
    return troubles
