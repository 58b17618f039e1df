"""Does what the pipeline file names under `tables` agree with the publications and the lake?

A table that the file names and the lake lacks is meant to be followed; one that the file named and names no
longer is perhaps meant to leave.  Neither happens by itself without a word: each is a finding, with the
command that does it.  So that "named no longer" can be told from "never named" (a publication may have more
tables than the file), a note lists the tables that the file has named and the lake has got.

Invariant: comparing changes nothing.  `infra.sync.joining_tables` publishes what is newly named.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from slotlake.decoder.catalog.membership import (
    Membership,
    adding,
    memberships,
    names_of_tables,
    publication_for,
)
from slotlake.decoder.catalog.publication_tables import published_names
from slotlake.decoder.catalog.source_types import TEXT_OR_UNPUBLISHED, withheld_columns
from slotlake.decoder.types.catalog import load_types
from slotlake.infra.config.table_names import Pattern, patterns_in
from slotlake.infra.reports import Alarm
from slotlake.infra.selection.named import matched_at_source, named_exactly, naming, nearest, unmatched
from slotlake.infra.state.notes import MADE, NAMED, StateFile
from slotlake.spark.names import parse_postgres_name, postgres_name, postgres_parts

if TYPE_CHECKING:
    import psycopg

    from slotlake.decoder.server.source import SourceSettings
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.lake import LakeSettings

Name: TypeAlias = tuple[str, str]


@dataclass(frozen=True)
class FileFinding:
    """A table of which the pipeline file says something else than publications and lake.

    Attributes:
        lacking: the file names it, and the lake will not get it by itself.
        wrong: no table of that name can be followed, so the file is wrong.
        section: the section of the file that says it.
    """

    table: str
    what: str
    way_out: str
    lacking: bool = False
    wrong: bool = False
    section: str = "tables"

    @property
    def warning(self) -> str:
        """In one line."""
        return f"{self.what}: {self.way_out}"


def names_in_lake(lake: LakeSettings) -> set[Name]:
    """Return the tables that the lake has, and those that are set aside."""
    from slotlake.spark.read.point import ReadPoint

    point = ReadPoint.latest(lake)
    return {*point.all_mirrors.by_source_name, *point.aside}


def noted_names(file: PipelineFile) -> frozenset[Name] | None:
    """Return the tables that the file has named and the lake has got; None if that was never noted."""
    note = _note(file).read()
    return None if note is None else frozenset(parse_postgres_name(str(name)) for name in note)


def newly_named(file: PipelineFile, connection: psycopg.Connection[Any]) -> frozenset[Name]:
    """Return the tables that the file names, and of which it was never noted that the lake got them.

    With `new_tables: ignore` a pattern names what the lake got by it, and no table that comes later.
    """
    matched = frozenset[Name]() if file.new_tables == "ignore" else matched_at_source(file, connection)
    return (named_exactly(file) | matched) - (noted_names(file) or frozenset())


def note_names(
    file: PipelineFile, in_lake: Collection[Name], published: Collection[Name] | None = None
) -> None:
    """Note which tables the file names and the lake has got.

    Args:
        in_lake: the tables that the lake has, and those that are set aside.
        published: the tables that are published; what the file names no longer is remembered as long as it
            is among them. None: not known, so all of it is.
    """
    noted = noted_names(file)
    before = noted or frozenset()
    followed = before.intersection(in_lake, before if published is None else published)
    names = followed.union(filter(naming(file), (before - followed).union(in_lake) - followed))
    if noted is None or names != noted:
        _note(file).write(sorted(postgres_name(*name) for name in names))


def forget_name(file: PipelineFile, name: Name) -> None:
    """Forget that the file named a table, unless it still does: then it would count as newly named."""
    noted = noted_names(file) or frozenset()
    names = noted | {name} if naming(file)(name) else noted - {name}
    _note(file).write(sorted(postgres_name(*each) for each in names))


def _note(file: PipelineFile) -> StateFile:
    return NAMED.of(file.state_dir)


def own_publications(state_dir: Path, source: SourceSettings) -> list[str]:
    """Return the publications that `init` has made for this pipeline, as far as it reads them."""
    made = MADE.of(state_dir).mapping().get("publications", [])
    return [name for name in source.publications if name in made]


def target_publication(
    state_dir: Path, source: SourceSettings, connection: psycopg.Connection[Any]
) -> tuple[str, bool] | None:
    """Return the publication that a table would be added to, and whether this role owns it."""
    return publication_for(connection, [*own_publications(state_dir, source), *source.publications])


def binary_findings(source: SourceSettings, connection: psycopg.Connection[Any]) -> list[FileFinding]:
    """Find the columns because of which `source.binary` is wrong."""
    if not source.binary:
        return []
    withheld = withheld_columns(connection, source.publications, load_types(connection))
    if not withheld:
        return []
    return [FileFinding("", "; ".join(withheld), TEXT_OR_UNPUBLISHED, wrong=True, section="source")]


def file_findings(
    pipeline: OpenPipeline,
    connection: psycopg.Connection[Any],
    in_lake: Collection[Name] | None,
    published: Collection[Name] | None = None,
) -> list[FileFinding]:
    """Compare what the pipeline file names with publications and lake.

    Args:
        in_lake: the tables that the lake has, and those that are set aside; None before `init`.
        published: the tables that are published, if that is known.
    """
    publications = pipeline.source.publications
    if published is None:
        published = published_names(connection, publications)
    exact, noted = named_exactly(pipeline.file), noted_names(pipeline.file) or frozenset()
    matched = matched_at_source(pipeline.file, connection)
    if pipeline.file.new_tables == "ignore" and in_lake is not None:
        matched &= noted
    unpublished = (exact | matched).difference(published)
    at_source = memberships(connection, publications, unpublished)
    others = names_of_tables(connection) if unpublished - at_source.keys() else []
    target = target_publication(pipeline.file.state_dir, pipeline.source, connection) if unpublished else None
    look = _Look(pipeline, in_lake, noted, target, others)
    findings = [look.judged(name, at_source.get(name)) for name in sorted(unpublished)]
    is_named = naming(pipeline.file)
    unnamed = noted.intersection(published, in_lake or ())
    findings += [look.unnamed(name) for name in sorted(unnamed) if not is_named(name)]
    findings += [
        finding if in_lake is None else replace(finding, lacking=False, wrong=False)
        for finding in (FileFinding(*each, True, True) for each in unmatched(pipeline.file, connection))
    ]
    if pipeline.file.new_tables == "ignore":
        known = (exact & noted).intersection(published)
        findings += [look.left_out(name) for name in sorted(known) if look.lacks(name)]
    return [finding for finding in findings if finding is not None]


@dataclass(frozen=True)
class _Look:
    """What is known when a table is judged.

    Attributes:
        target: the publication that it would be added to, and whether the role owns it; None if none can
            take it.
        others: the tables of the source, if a name is of none.
    """

    pipeline: OpenPipeline
    in_lake: Collection[Name] | None
    noted: Collection[Name]
    target: tuple[str, bool] | None
    others: Sequence[Name]

    def lacks(self, name: Name) -> bool:
        return self.in_lake is not None and name not in self.in_lake

    def judged(self, name: Name, at_source: Membership | None) -> FileFinding | None:
        """Judge a table that the file names and that the publications do not list."""
        if at_source is not None and at_source.is_published:
            return None  # under the names of its partitions, or of the root
        table = postgres_name(*name)
        if self.in_lake is not None and name in self.in_lake:
            return self._left(name, at_source)
        if at_source is None:
            meant = nearest(name, self.others)
            what = f"the pipeline file names {table}, and the source has no such table"
            way_out = f"did you mean {meant}? Correct" if meant else "correct"
            return FileFinding(
                table, what, f"{way_out} its name (with its schema), or take it out of `tables`", True, True
            )
        if at_source.obstacle:
            what = f"the pipeline file names {table}, which is {at_source.obstacle}: it cannot be published"
            return FileFinding(table, what, "take it out of `tables`", True, True)
        return self._unpublished(name, at_source)

    def _left(self, name: Name, at_source: Membership | None) -> FileFinding:
        table = postgres_name(*name)
        stays, named = "the lake's table stays as it was", self._named(name)
        remove = command(self.pipeline.file, "remove", name)
        if at_source is None:
            what = f"{named}, and the source has no such table any more; {stays}"
            way_out = f"take it out of `tables`; {remove} --drop drops the lake's table"
            return FileFinding(table, what, way_out)
        what = f"{named}, which is not published any more; {stays}"
        add, out = command(self.pipeline.file, "add", name), self._taking_out(name)
        return FileFinding(table, what, f"{add} publishes and copies it again; or {out} ({remove})")

    def _named(self, name: Name) -> str:
        """Say how the file names a table: by its name, or by a pattern."""
        if name in named_exactly(self.pipeline.file):
            return f"the pipeline file names {postgres_name(*name)}"
        pattern = next(each for each in patterns_in(self.pipeline.file.tables) if each.matches(name))
        return f"the pipeline file's {pattern.text} names {postgres_name(*name)}"

    def _taking_out(self, name: Name) -> str:
        """Say how the file stops naming a table."""
        if name in named_exactly(self.pipeline.file):
            return "take it out of `tables`"
        return f"write under `tables`: {line_in_file(name, exclude=True).strip()}"

    def _unpublished(self, name: Name, at_source: Membership) -> FileFinding:
        table = postgres_name(*name)
        what = f"{self._named(name)}, which no publication of the pipeline has"
        add = command(self.pipeline.file, "add", name)
        if name in self.noted:
            return FileFinding(table, what, f"{add}, or {self._taking_out(name)}", True)
        if self.target is None:
            way_out = "make a publication for it, and name that in source.publications too"
            return FileFinding(table, what, way_out, True)
        publication, is_own = self.target
        if self.in_lake is not None and adds_by_itself(
            self.pipeline.file.state_dir, self.pipeline.source, publication, at_source, is_own=is_own
        ):
            return FileFinding(table, what, f"the next sync adds it to {publication}, and copies it")
        by_hand = f"run at the source: {adding(publication, [name])}"
        if not (at_source.is_owned and is_own):
            by_hand = f"{by_hand} (as their owner: this role may not)"
            return FileFinding(table, what, by_hand, True)
        return FileFinding(table, what, by_hand if self.in_lake is None else f"{add}; or {by_hand}", True)

    def unnamed(self, name: Name) -> FileFinding:
        """Describe a table that the file named, and that is still followed."""
        table = postgres_name(*name)
        what = f"the pipeline file does not name {table} any more, and it is still published and followed"
        remove = command(self.pipeline.file, "remove", name)
        way_out = f"{remove} ends that (with --drop also the lake's table); or name it again"
        return FileFinding(table, what, way_out)

    def left_out(self, name: Name) -> FileFinding:
        """Describe a table that the file names, and that was removed from the lake."""
        table = postgres_name(*name)
        what = f"the pipeline file names {table}, which was removed from the lake and is not copied again"
        add = command(self.pipeline.file, "add", name)
        return FileFinding(table, what, f"take it out of `tables`; or {add}", True)


def adds_by_itself(
    state_dir: Path, source: SourceSettings, publication: str, at_source: Membership, *, is_own: bool
) -> bool:
    """Return whether a sync adds a newly named table to a publication: one that `init` made, and may change.

    Args:
        publication: the publication that the table would be added to.
        at_source: the table at the source.
        is_own: this role owns the publication.
    """
    return is_own and at_source.is_owned and publication in own_publications(state_dir, source)


def command(file: PipelineFile, action: str, name: Name) -> str:
    """Return the command that adds or removes a table, as a shell takes it.

    Args:
        action: ``add`` or ``remove``.
        name: schema and name of the table.
    """
    return f"slotlake {action} {file.path.name} --table {shlex.quote(postgres_name(*name))}"


def finding_alarms(findings: Sequence[FileFinding]) -> list[Alarm]:
    """Return an alarm for each table that the file names and that the lake will not get by itself."""
    return [
        Alarm("table not followed", each.what, each.way_out, each.table) for each in findings if each.lacking
    ]


def line_in_file(name: Name, *, exclude: bool = False) -> str:
    """Return the line that names a table, or excludes it, under `tables` in a pipeline file."""
    return _line(postgres_name(*name), "exclude: true" if exclude else "")


def pattern_line(pattern: Pattern) -> str:
    """Return the line of a pattern under `tables` in a pipeline file."""
    schema, table = postgres_parts(pattern.text)
    return _line(f"{schema}.{table}", "")


def _line(text: str, said: str) -> str:
    # A star at the beginning would be an alias in YAML.
    key = "'" + text.replace("'", "''") + "'" if '"' in text or text.startswith("*") else text
    return f"  {key}: {{{said}}}"
