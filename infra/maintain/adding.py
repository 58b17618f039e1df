"""Add a table: publish it where the role may, and bring it into the lake while batches go on.

Safe to repeat: what is published stays, what is copied stays, and the next sync would go on with it, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg

from slotlake.decoder.catalog.membership import (
    Membership,
    Name,
    adding,
    alter_publications,
    memberships,
    names_of_tables,
)
from slotlake.decoder.catalog.publication_tables import published_names
from slotlake.decoder.catalog.publications import check_publications
from slotlake.decoder.errors import PipelineFileError, SourceError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.privileges import require_readable
from slotlake.decoder.server.source import source_session
from slotlake.infra.copy.tables import published_tables
from slotlake.infra.maintain.removing import finish_removal
from slotlake.infra.reports import Report
from slotlake.infra.selection import known_tables
from slotlake.infra.selection.file_tables import (
    line_in_file,
    names_in_lake,
    note_names,
    target_publication,
)
from slotlake.infra.selection.named import expanded, matching, naming, nearest
from slotlake.infra.sync.batch_steps import BatchSteps
from slotlake.infra.sync.catch_up import Sync
from slotlake.infra.sync.joining_tables import JoiningTables
from slotlake.infra.sync.reading_again import WholeTablesAgain
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.read.point import ReadPoint

WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class TableAdded(Report):
    """A table that was to be added.

    Attributes:
        table: as PostgreSQL writes it.
        publication: the publication that it was added to; None if it was published already.
        state: ``followed``; ``copying``: the next syncs go on with it; ``set aside``.
        detail: how much is copied, or why it is set aside.
    """

    table: str
    publication: str | None
    state: str
    detail: str = ""


@dataclass(frozen=True)
class AddReport(Report):
    """What became of the tables, and the lines that name them in the pipeline file, if it does not yet."""

    pipeline: str
    lsn: str
    tables: list[TableAdded] = field(default_factory=list)
    to_write: list[str] = field(default_factory=list)


class Adding:
    """Tables that a pipeline is to follow."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def add(self, tables: Sequence[str], publication: str | None, progress: Progressing) -> AddReport:
        """Publish tables and follow them.

        Args:
            tables: as PostgreSQL writes them.
            publication: the publication that takes them; the pipeline's own, or its first, when not given.

        Raises:
            PipelineFileError: the source has no such table, or cannot publish it; nothing was changed.
            SourceError: this role may not read it, or change the publication; the error has the statements.
        """
        with source_session(self._source.dsn, "looking for the tables") as connection:
            names = expanded(tables, lambda pattern: matching(self._file, [pattern], connection))
        with self._pipeline.exclusively(WAIT_SECONDS, step="add"):
            self._pipeline.position()  # raises a clear error if there is no lake
            finish_removal(self._file.state_dir, self._lake)
            published_by, listed = self._publish(names, publication)
            reach("named.published")
        self._bring_in(listed, progress)
        return self._report(names, published_by, listed)

    def _publish(self, names: Sequence[Name], publication: str | None) -> tuple[dict[Name, str], list[Name]]:
        """Publish what is not published; return which publication took it, and the names in the stream."""
        source = self._source
        with source_session(source.dsn, "adding tables to the publication") as connection:
            check_publications(connection, source.publications)
            before = published_names(connection, source.publications)
            at_source = memberships(connection, source.publications, names)
            for name in names:
                _require_publishable(connection, name, at_source.get(name))
            require_readable(connection, {each.relation_id: None for each in at_source.values()})
            new = [name for name in dict.fromkeys(names) if not at_source[name].is_published]
            target = self._target(connection, new, publication) if new else ""
            if new:
                alter_publications(connection, {adding(target, new): new[0]})
            after = published_names(connection, source.publications)
        listed = [name for name in names if name in after]
        return dict.fromkeys(new, target), [*dict.fromkeys([*listed, *sorted(after - before)])]

    def _target(
        self,
        connection: psycopg.Connection[object],
        names: Sequence[Name],
        publication: str | None,
    ) -> str:
        publications = self._source.publications
        if publication is not None:
            if publication not in publications:
                raise PipelineFileError(
                    f"the pipeline does not read the publication {publication!r}",
                    where="--publication",
                    way_out=f"name one of source.publications: {', '.join(publications)}",
                )
            return publication
        target = target_publication(self._file.state_dir, self._source, connection)
        if target is None:
            raise SourceError(
                "no publication of the pipeline takes tables and publishes all kinds of changes",
                where="source.publications",
                way_out=f"name one by --publication, or make one ({_creating(names)}) and name it in "
                "source.publications too",
            )
        return target[0]

    def _bring_in(self, names: Sequence[Name], progress: Progressing) -> None:
        """Copy the tables that the lake lacks; while the copy goes on, others have their turn in between."""
        from slotlake.spark.catalog.looks import sparing

        if self._file.new_tables == "ignore":
            self._copy_lacking(names, progress)
        before = None
        while True:
            with self._pipeline.exclusively(WAIT_SECONDS, step="add"), sparing():
                Sync(self._pipeline).catch_up(progress)
                joining = JoiningTables(self._pipeline).progress_by_table()
                in_lake = names_in_lake(self._lake)
                note_names(self._file, in_lake)
                known_tables.write_note(
                    self._file.state_dir, self._lake, [postgres_name(*name) for name in names]
                )
            copied = {name: joining.get(postgres_name(*name), "") for name in names if name not in in_lake}
            if not copied or copied == before:
                return
            before = copied

    def _copy_lacking(self, names: Sequence[Name], progress: Progressing) -> None:
        """Copy the tables that the lake lacks; no sync does, because new tables are ignored."""
        with self._pipeline.exclusively(WAIT_SECONDS, step="add"):
            lacking = set(names) - set(names_in_lake(self._lake))
            if lacking:
                published = published_tables(self._pipeline, include_aside=lacking)
                tables = [each for each in published if (each.schema, each.table) in lacking]
                WholeTablesAgain(self._pipeline).read_again(tables, WAIT_SECONDS, progress)
                BatchSteps(self._pipeline).confirm_position()

    def _report(
        self,
        names: Collection[Name],
        published_by: dict[Name, str],
        listed: Collection[Name],
    ) -> AddReport:
        point, joining = _latest(self._lake), JoiningTables(self._pipeline).progress_by_table()
        added = []
        for name in dict.fromkeys([*names, *listed]):
            table = postgres_name(*name)
            state, detail = "followed", ""
            if name in point.aside:
                state, detail = "set aside", f"{point.aside[name].reason}: {point.aside[name].way_out}"
            elif name in listed and name not in point.all_mirrors.by_source_name:
                state, detail = "copying", joining.get(table, "")
            added.append(TableAdded(table, published_by.get(name), state, detail))
        is_named = naming(self._file)
        to_write = [line_in_file(name) for name in names if not is_named(name)]
        return AddReport(self._pipeline.name, format_lsn(point.position), added, to_write)


def unknown_table(connection: psycopg.Connection[object], name: Name) -> PipelineFileError:
    """Return the error about a name that is no table's."""
    meant = nearest(name, names_of_tables(connection))
    return PipelineFileError(
        f"the source has no table {postgres_name(*name)}",
        where="--table",
        way_out=f"did you mean {meant}?" if meant else "name it as PostgreSQL writes it, with its schema",
    )


def _require_publishable(
    connection: psycopg.Connection[object], name: Name, at_source: Membership | None
) -> None:
    if at_source is None:
        raise unknown_table(connection, name)
    if at_source.obstacle:
        raise PipelineFileError(
            f"{postgres_name(*name)} is {at_source.obstacle}: PostgreSQL cannot publish it",
            where="--table",
            way_out="name a table; of a view, the tables that it reads",
        )


def _creating(names: Sequence[Name]) -> str:
    return f"CREATE PUBLICATION … FOR TABLE {', '.join(postgres_name(*name) for name in names)}"


def _latest(lake: LakeSettings) -> ReadPoint:
    from slotlake.spark.read.point import ReadPoint

    return ReadPoint.latest(lake)
