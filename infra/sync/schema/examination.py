"""What a batch meets at the source: each followed table is compared with the source's catalog.

Most batches meet nothing new, and most tables of a batch do not differ; only those that do are judged
(`infra.sync.schema.rules`).  Nothing is changed here, neither in the lake nor in the change log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.fingerprints import TableFingerprint
from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.changelog.batches import Batch, BatchRelation
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.source.fingerprints import (
    CatalogFingerprint,
    fingerprints_at,
    followed_fingerprints,
    partitions_below,
)
from slotlake.infra.sync.schema.ddl_events import AlteredTable, altered_tables, proven_numbers, row_places
from slotlake.infra.sync.schema.findings import Findings
from slotlake.infra.sync.schema.renamed_objects import NAMES_BETWEEN, tables_naming_renamed_objects
from slotlake.infra.sync.schema.rules import Verdict, has_changes_beyond_lake, judge, reprinted_reason

if TYPE_CHECKING:
    from slotlake.decoder.memory import Memory
    from slotlake.decoder.server.source import SourceSettings
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.read.newest import Mirrors
    from slotlake.spark.read.point import ReadPoint
    from slotlake.spark.tables.schema import TableSchema

Name = tuple[str, str]
_ELSEWHERE = "rows changed while the table had another name"


@dataclass(frozen=True, eq=False)
class _Followed:
    """The tables that the lake follows; the same object as before, if all have the same shapes.

    Attributes:
        mirrors: by schema and name.
        names: by the OID of the source table that they were copied from.
    """

    mirrors: Mapping[Name, TableSchema]
    names: Mapping[int, Sequence[Name]]

    @classmethod
    def of(cls, mirrors: Mapping[Name, TableSchema]) -> _Followed:
        names: dict[int, list[Name]] = {}
        for name, mirror in mirrors.items():
            names.setdefault(relation_id(mirror), []).append(name)
        return cls(mirrors, names)


@dataclass(frozen=True)
class _Agreement:
    """Which of these tables agreed with the source's catalog when it said this, and which did not.

    Both sides are the same objects as long as nothing has changed, and what was equal stays equal.
    """

    followed: _Followed
    fingerprints: Mapping[int, TableFingerprint]
    agreeing: Mapping[Name, tuple[TableSchema, TableFingerprint]]
    differing: frozenset[Name]


@dataclass(frozen=True)
class _Examined:
    """A batch, the lake before it, and the source's catalog behind it.

    Attributes:
        followed: the tables that the lake follows.
        relations: the batch's relation versions that have rows, oldest first, by schema and name.
        fingerprints: OID of a source table → what the catalog says of it.
        point: the read point at which the mirrors were read.
        snapshot: name of the source's snapshot by which the catalog was read; None for the catalog of now.
        at_end: the catalog was read exactly where the batch ends.
    """

    batch: Batch
    followed: _Followed
    relations: Mapping[Name, Sequence[BatchRelation]]
    fingerprints: Mapping[int, TableFingerprint]
    point: ReadPoint
    snapshot: str | None
    at_end: bool

    @property
    def mirrors(self) -> Mapping[Name, TableSchema]:
        """The tables that the lake follows, by schema and name."""
        return self.followed.mirrors

    def fingerprint(self, mirror: TableSchema) -> TableFingerprint | None:
        """What the catalog says of the table that the lake has; None if that table is gone."""
        return self.fingerprints.get(relation_id(mirror))

    def relations_of(self, mirror: TableSchema) -> Sequence[BatchRelation]:
        """The batch's relation versions of a mirror that have rows, oldest first."""
        return self.relations.get((mirror.schema, mirror.table), ())


class Examination:
    """What the tables of a batch became meanwhile at the source."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline, self._lake, self._source = pipeline, pipeline.lake, pipeline.source

    def examine(self, batch: Batch, snapshot: ExportedSnapshot | None) -> Findings:
        """Compare the tables that the lake follows with the source's catalog; say what the batch asks for.

        Args:
            batch: a batch that starts at the lake's position.
            snapshot: a snapshot of the source at which the catalog is read; None to read the catalog of now.

        Raises:
            SourceError: the source's catalog cannot be read, or a publication is missing.
        """
        examined = self._examined(batch, snapshot)
        reasons = _reasons_by_rows(self._source.dsn, examined)
        changed = [name for name in examined.relations if name in examined.mirrors]
        differing = {name for name in changed if _differs_in_rows(examined.mirrors[name], examined)}
        names = sorted(differing.union(reasons, _differing(self._pipeline.memory, examined)))
        suspects = {name: examined.mirrors[name] for name in names}
        return self._findings(examined, suspects, reasons) if suspects else Findings()

    def _examined(self, batch: Batch, snapshot: ExportedSnapshot | None) -> _Examined:
        from slotlake.spark.read.point import ReadPoint

        point = ReadPoint.latest(self._lake)
        followed = _followed(self._pipeline.memory, point)
        snapshot_name = None if snapshot is None else snapshot.snapshot
        relations: dict[Name, list[BatchRelation]] = {}
        for relation in batch.relations:
            if relation.rows:
                relations.setdefault((relation.schema, relation.table), []).append(relation)
        return _Examined(
            batch,
            followed,
            relations,
            followed_fingerprints(self._pipeline, followed.names.keys(), snapshot_name, batch.end_lsn),
            point,
            snapshot_name,
            at_end=snapshot is not None and snapshot.lsn == batch.end_lsn,
        )

    def _findings(
        self,
        examined: _Examined,
        suspects: Mapping[Name, TableSchema],
        reasons: Mapping[Name, str],
    ) -> Findings:
        """Judge the suspects.

        Args:
            suspects: the tables that differ, by schema and name.
            reasons: the tables that must be copied whatever the catalog says, and why.
        """
        from slotlake.infra.copy.tables import published_tables

        published = {
            (table.schema, table.table): table for table in published_tables(self._pipeline, to_read=False)
        }
        examined = _with_published(
            self._source, examined, [published[name] for name in suspects if name in published]
        )
        altered = altered_tables(examined.batch)
        verdicts = {
            name: Verdict(copy_reason=reasons[name])
            if name in reasons
            else _verdict(mirror, published[name], examined, altered)
            for name, mirror in suspects.items()
            if name in published
        }
        findings = _together(examined, verdicts, published)
        return _with_unpublished(
            findings, examined, [mirror for name, mirror in suspects.items() if name not in published]
        )


def relation_id(mirror: TableSchema) -> int:
    """The OID of the source table that a mirror was copied from."""
    fingerprint = CatalogFingerprint.from_json(mirror.fingerprint)
    return mirror.relation_id if fingerprint is None else fingerprint.relation_id


@dataclass(frozen=True)
class _AllFollowed:
    """What is followed while no table is set aside."""

    mirrors: Mirrors
    followed: _Followed


def _followed(memory: Memory, point: ReadPoint) -> _Followed:
    mirrors, aside = point.all_mirrors, point.aside.keys()
    if aside:
        return _Followed.of({n: each for n, each in mirrors.by_source_name.items() if n not in aside})
    last = memory.get(_AllFollowed)
    if last is None or last.mirrors is not mirrors:
        last = _AllFollowed(mirrors, _Followed.of(mirrors.by_source_name))
        memory.put(last)
    return last.followed


def _reasons_by_rows(dsn: str, examined: _Examined) -> dict[Name, str]:
    """Tables that the batch's rows alone prove to need a copy, and why."""
    renamed = tables_naming_renamed_objects(dsn, examined.mirrors, examined.batch, examined.snapshot)
    elsewhere = _with_rows_elsewhere(examined) | _with_rows_of_a_root(dsn, examined)
    return dict.fromkeys(renamed, NAMES_BETWEEN) | dict.fromkeys(elsewhere, _ELSEWHERE)


def _with_rows_elsewhere(examined: _Examined) -> set[Name]:
    """Tables that have rows under another name too: those went to another table of the lake, or nowhere."""
    names: dict[int, set[Name]] = {}
    for name, relations in examined.relations.items():
        for relation in relations:
            names.setdefault(relation.relation_id, set()).add(name)
    followed = examined.followed.names
    return {name for oid, seen in names.items() for name in followed.get(oid, ()) if seen != {name}}


def _with_rows_of_a_root(dsn: str, examined: _Examined) -> set[Name]:
    """Partitions of which rows may have come as those of a table above, which the lake does not follow.

    The table above was published for a moment, together with the partition: the catalog shows nothing of
    that any more.
    """
    names = examined.followed.names
    strangers = {
        relation.relation_id
        for name, relations in examined.relations.items()
        if name not in examined.mirrors
        for relation in relations
        if relation.relation_id not in names
    }
    if not strangers:
        return set()
    below = partitions_below(dsn, names, strangers, examined.snapshot)
    return {name for oid in below for name in names[oid]}


def _differing(memory: Memory, examined: _Examined) -> frozenset[Name]:
    """The tables that differ from the source's catalog. Of most tables, most of the time, nothing differs."""
    followed, fingerprints = examined.followed, examined.fingerprints
    before = memory.get(_Agreement)
    if before is not None and before.followed is followed and before.fingerprints is fingerprints:
        return before.differing
    agreed = {} if before is None else before.agreeing
    pairs = {name: (mirror, examined.fingerprint(mirror)) for name, mirror in followed.mirrors.items()}
    agreeing = {
        name: (mirror, now)
        for name, (mirror, now) in pairs.items()
        if now is not None and (_are_same(agreed.get(name), mirror, now) or _agree(mirror, now))
    }
    differing = frozenset(name for name in pairs if name not in agreeing)
    memory.put(_Agreement(followed, fingerprints, agreeing, differing))
    return differing


def _are_same(
    before: tuple[TableSchema, TableFingerprint] | None, mirror: TableSchema, now: TableFingerprint
) -> bool:
    return before is not None and before[0] is mirror and before[1] is now


def _agree(mirror: TableSchema, now: TableFingerprint) -> bool:
    """Return whether the catalog says of a table what its mirror was copied from."""
    before = CatalogFingerprint.from_json(mirror.fingerprint)
    if before is None or (now.schema, now.table) != (mirror.schema, mirror.table):
        return False
    present = CatalogFingerprint.of(now, [column.number for column in mirror.live], before)
    return before.agrees(present) and all(number <= before.last for number in now.numbers.values())


def _differs_in_rows(mirror: TableSchema, examined: _Examined) -> bool:
    """Return whether the batch has rows with columns that the lake does not have."""
    if not examined.relations_of(mirror):
        return False
    lake_columns = {(column.name, column.type_oid, column.typmod) for column in mirror.live}
    row_columns = {
        (column.name, column.type_oid, column.typmod)
        for relation in examined.relations_of(mirror)
        for column in relation.columns
    }
    return bool(row_columns - lake_columns) and not mirror.selection


def _with_published(source: SourceSettings, examined: _Examined, tables: Iterable[SourceTable]) -> _Examined:
    """Read the catalog of published tables too, where another table of that name is in the lake."""
    more = [table.relation_id for table in tables if table.relation_id not in examined.fingerprints]
    fingerprints = fingerprints_at(source, more, examined.snapshot)
    return replace(examined, fingerprints={**examined.fingerprints, **fingerprints})


def _verdict(
    mirror: TableSchema,
    published: SourceTable,
    examined: _Examined,
    altered: Mapping[int, Sequence[AlteredTable]],
) -> Verdict:
    return judge(
        mirror,
        examined.fingerprint(mirror),
        published,
        examined.relations_of(mirror),
        at_end=examined.at_end,
        proven_numbers=_proven_numbers(mirror, examined, altered),
        alone=not examined.point.derived_tables(mirror.source_name),
    )


def _proven_numbers(
    mirror: TableSchema, examined: _Examined, altered: Mapping[int, Sequence[AlteredTable]]
) -> Mapping[int, Mapping[str, int]] | None:
    """What the event trigger proves of a table's column numbers; None where it proves nothing."""
    events, now = altered.get(relation_id(mirror)), examined.fingerprint(mirror)
    if events is None or now is None:
        return None
    relations = examined.relations_of(mirror)
    return proven_numbers(
        mirror, events, [(relation, row_places(examined.batch, relation)) for relation in relations], now
    )


def _together(
    examined: _Examined, verdicts: Mapping[Name, Verdict], published: Mapping[Name, SourceTable]
) -> Findings:
    """The verdicts on single tables as the findings of the batch."""
    mirrors = examined.mirrors
    source_names = {name: mirrors[name].source_name for name in verdicts}
    return Findings(
        copies={published[name]: each.copy_reason for name, each in verdicts.items() if each.copy_reason},
        numbers={ordinal: named for each in verdicts.values() for ordinal, named in each.numbers.items()},
        fingerprints={
            source_names[name]: each.fingerprint for name, each in verdicts.items() if each.fingerprint
        },
        constants={source_names[name]: each.constants for name, each in verdicts.items() if each.constants},
        new_shapes=[each.new_shape for each in verdicts.values() if each.new_shape is not None],
        republished=frozenset(
            name
            for name, each in verdicts.items()
            if each.copy_reason and _is_republished(mirrors[name], published[name], examined)
        ),
        alternatives={
            published[name]: each.alternative
            for name, each in verdicts.items()
            if each.alternative is not None
        },
    )


def _is_republished(mirror: TableSchema, published: SourceTable, examined: _Examined) -> bool:
    """Return whether transactions that are open may have changes of the table that are not sent."""
    before, now = (
        CatalogFingerprint.from_json(mirror.fingerprint),
        examined.fingerprints.get(published.relation_id),
    )
    if before is None or now is None:
        return True
    if before.relation_id != now.relation_id or before.members != now.members or before.unsent(now):
        return True
    # What a transaction wrote before a label was renamed is sent under the label of then, when it commits.
    return bool(reprinted_reason(mirror, before, now))


def _with_unpublished(findings: Findings, examined: _Examined, mirrors: Iterable[TableSchema]) -> Findings:
    """Add mirrors whose source tables are not published any more."""
    mirrors = list(mirrors)
    return replace(
        findings,
        unpublished=frozenset(
            mirror.source_name
            for mirror in mirrors
            if has_changes_beyond_lake(mirror, examined.relations_of(mirror))
        ),
        new_shapes=[*findings.new_shapes, *filter(None, map(_noted_as_unpublished, mirrors))],
    )


def _noted_as_unpublished(mirror: TableSchema) -> TableSchema | None:
    """The shape that says that the table left the publications; None if the mirror's shape says so already.

    A table that comes back under that name is then taken for another one.
    """
    fingerprint = CatalogFingerprint.from_json(mirror.fingerprint)
    if fingerprint is None or fingerprint.has_left:
        return None
    return replace(mirror, fingerprint=fingerprint.of_left().to_json())
