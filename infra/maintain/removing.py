"""Remove a table: out of the publication first, then, if that is asked for, out of the lake with its files.

Invariant: a table leaves the lake only when the source does not send it to the lake any more, or when the
pipeline file says that new tables are ignored: else the next sync would copy it again.  Safe to repeat.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.membership import (
    Membership,
    Name,
    alter_publications,
    memberships,
    removing,
)
from slotlake.decoder.catalog.publication_tables import published_names
from slotlake.decoder.errors import PipelineFileError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.position import source_position
from slotlake.decoder.server.source import source_session
from slotlake.infra.reports import Report
from slotlake.infra.selection import known_tables
from slotlake.infra.selection.file_tables import forget_name, line_in_file
from slotlake.infra.selection.named import expanded, named_exactly, naming, nearest
from slotlake.infra.state.notes import REMOVED, REMOVING
from slotlake.infra.sync import joining_tables
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.names import LakeName
    from slotlake.spark.read.point import ReadPoint


@dataclass(frozen=True)
class RemoveReport(Report):
    """What was done, a line each, and the lines to take out of the pipeline file, and to write into it.

    Attributes:
        remaining: tables that the lake still has, with their content as it was; as PostgreSQL writes them.
        still_published: tables that the source still sends, and the lake passes over.
    """

    pipeline: str
    lsn: str
    done: list[str] = field(default_factory=list)
    remaining: list[str] = field(default_factory=list)
    still_published: list[str] = field(default_factory=list)
    to_take_out: list[str] = field(default_factory=list)
    to_write: list[str] = field(default_factory=list)


class Removing:
    """Tables that a pipeline is to follow no more."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def remove(self, tables: Collection[str], *, drop: bool) -> RemoveReport:
        """Take tables out of the publications; with ``drop`` out of the lake too. The caller has the lock.

        Args:
            tables: names as PostgreSQL writes them; a pattern names what the lake has and it matches.
            drop: remove the lake's tables and their derived tables, with their files.

        Raises:
            PipelineFileError: there is no such table; or it cannot leave a publication, which has all.
            SourceError: this role may not change the publication; the error has the statements.
        """
        from slotlake.spark.read.point import ReadPoint

        self._pipeline.position()  # raises a clear error if there is no lake
        done = finish_removal(self._file.state_dir, self._lake)
        point = ReadPoint.latest(self._lake)
        in_lake = {*point.all_mirrors.by_source_name, *point.aside}
        names = expanded(tables, lambda pattern: set(filter(pattern.matches, in_lake)))
        unpublished, still_published, left = self._unpublish(names, in_lake, drop=drop)
        done += unpublished
        reach("remove.unpublished")
        concerned = [name for name in dict.fromkeys([*names, *sorted(left)]) if name in in_lake]
        if drop:
            done += self._drop(point, concerned)
        for name in names:
            forget_name(self._file, name)
        gone = REMOVED.of(self._file.state_dir)
        seen_at = source_position(self._source)
        gone.write({**gone.mapping(), **{postgres_name(*name): seen_at for name in [*names, *left]}})
        known_tables.write_note(self._file.state_dir, self._lake, [postgres_name(*name) for name in names])
        return RemoveReport(
            self._pipeline.name,
            format_lsn(point.position),
            done,
            [] if drop else [postgres_name(*name) for name in concerned],
            still_published,
            [line_in_file(name) for name in names if name in named_exactly(self._file)],
            [line_in_file(name, exclude=True) for name in names if self._is_matched(name)],
        )

    def _is_matched(self, name: Name) -> bool:
        return name not in named_exactly(self._file) and naming(self._file)(name)

    def _unpublish(
        self, names: Collection[Name], in_lake: Collection[Name], *, drop: bool
    ) -> tuple[list[str], list[str], set[Name]]:
        """Take tables out of the publications that name them.

        Returns:
            The statements that were run, the tables that are published all the same, and the names that have
            left the stream.
        """
        source = self._source
        with source_session(source.dsn, "removing tables from the publications") as connection:
            at_source = memberships(connection, source.publications, names)
            for name in names:
                if name not in at_source and name not in in_lake and not naming(self._file)(name):
                    raise _unknown(name, in_lake)
            still_published = [
                _require_leaving(self._file, n, e, drop=drop) for n, e in at_source.items() if e.covered_by
            ]
            before = published_names(connection, source.publications)
            statements = {
                removing(publication, [name]): name
                for name, each in at_source.items()
                for publication in each.named_by
            }
            if statements:
                alter_publications(connection, statements)
            joining_tables.JoiningTables(self._pipeline).give_up(
                [each.relation_id for each in at_source.values()]
            )
            left = before - published_names(connection, source.publications)
        return [f"ran at the source: {statement}" for statement in statements], still_published, left

    def _drop(self, point: ReadPoint, names: Collection[Name]) -> list[str]:
        """Publish a point without the tables, then drop them from the catalog, then remove their files."""
        from slotlake.spark.maintenance.removal import drop_tables
        from slotlake.spark.publish.removed import publish_without

        lake_tables = [table for name in names for table in _lake_tables(point, name)]
        if not names:
            return []
        publish_without(self._lake, self._pipeline.name, lake_tables, names)
        reach("remove.unlisted")
        note = REMOVING.of(self._file.state_dir)
        dropped = drop_tables(
            self._lake,
            self._pipeline.name,
            lake_tables,
            before_removal=lambda locations: note.write({"files": locations}, durable=True),
        )
        note.remove()
        return [f"dropped the lake table {table}" for table in dropped]


def _unknown(name: Name, in_lake: Collection[Name]) -> PipelineFileError:
    meant = nearest(name, in_lake)
    return PipelineFileError(
        f"neither source nor lake has a table {postgres_name(*name)}",
        where="--table",
        way_out=f"did you mean {meant}?" if meant else "slotlake status lists the tables",
    )


def _require_leaving(file: PipelineFile, name: Name, at_source: Membership, *, drop: bool) -> str:
    """Return a table that cannot leave its publications, if the lake can do without it all the same."""
    table = postgres_name(*name)
    if drop and file.new_tables == "ignore":
        return table
    publications = ", ".join(at_source.covered_by)
    raise PipelineFileError(
        f"{table} cannot leave the publication {publications}, which has all tables, the table's schema, or "
        "a partitioned table above it",
        where="--table",
        way_out="write new_tables: ignore into the pipeline file, and run this with --drop: the lake then "
        "does without the table, though it is published. Or have the publication name its tables",
    )


def _lake_tables(point: ReadPoint, name: Name) -> list[LakeName]:
    if name not in point.all_mirrors.by_source_name:
        return []  # it was set aside before its first copy
    table = postgres_name(*name)
    return [point.find(table), *point.derived_tables(table).values()]


def finish_removal(state_dir: Path, lake: LakeSettings) -> list[str]:
    """Remove the files of tables whose removal was cut off, unless the lake has the tables again."""
    from slotlake.spark.catalog.base import load
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.maintenance.removal import remove_files

    note = REMOVING.of(state_dir)
    files = set(note.mapping().get("files", []))
    if not files:
        return []
    with open_catalog(lake) as catalog:
        pointers = catalog.pointers()
        used = {load(pointers, name).metadata["location"] for name in pointers}
    remove_files(sorted(files - used))
    note.remove()
    return [f"removed the files of a table that was dropped before: {each}" for each in sorted(files - used)]
