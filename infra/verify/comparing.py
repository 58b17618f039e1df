"""The comparison of a verification, by its scope: all rows, the rows that changed, or a slice of the rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.catalog.vanished import VanishedError
from slotlake.decoder.errors import ChangedMeanwhileError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.expectations.reconcile import DIFFERENCES_MAX, Manner, Piece, compare_pieces, reconcile
from slotlake.expectations.results import (
    CHANGED,
    FULL,
    NO_TABLE,
    ROLLING,
    TABLES_TROUBLE,
    Difference,
    Report,
    TableResult,
    joined,
    not_compared,
    rewritten,
)
from slotlake.expectations.scopes.key_rows import KeyRows, compare_keys
from slotlake.expectations.sessions.pace import Pace
from slotlake.expectations.sessions.pool import Sessions, sessions
from slotlake.expectations.shapes import Compared, OtherRows
from slotlake.expectations.source_side import hashes_escaped
from slotlake.infra.verify.changed import NO_KEY, ChangedTable, changes_since
from slotlake.infra.verify.rolling import RUN_SECONDS_MAX, Plan, Turn, plan_turns
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.read.point import ReadPoint


@dataclass
class Comparison:
    """Both sides at one LSN, and what of them is compared.

    Attributes:
        pipeline: the pipeline; its lock is not needed.
        snapshot: the source's snapshot.
        point: the lake.
        tables: the tables that are compared.
        verified: the note of what was found equal before.
        scope: as in `slotlake.infra.verify.verification.VerifyRequest`.
        source_load: likewise.
        connections: likewise.
        whole: tables of which all rows were compared, whatever the scope is.
        plan: the slices whose turn it is.
        turns: those that were compared, and whether they were equal.
        pace: how much of the source is taken.
    """

    pipeline: OpenPipeline
    snapshot: ExportedSnapshot
    point: ReadPoint
    tables: Sequence[SourceTable]
    verified: dict[str, Any]
    scope: str
    source_load: float | None = None
    connections: int = 1
    whole: set[str] = field(default_factory=set)
    plan: Plan | None = None
    turns: list[tuple[Turn, bool]] = field(default_factory=list)
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        self.pace.share = self.source_load

    @property
    def others(self) -> OtherRows:
        """What else the lake has of tables."""
        return OtherRows(self.point.open_versions, self.point.marked_rows)

    def report(self, progress: Progressing) -> Report:
        """Compare.

        Raises:
            SourceError: the server cannot be reached, or may not be read in full.
            LakeError: the lake cannot be read.
        """
        if self.scope == CHANGED:
            report = self._changed(progress)
        elif self.scope == ROLLING:
            report = self._rolling(progress)
        else:
            report = self._whole(self.tables, progress)
        return replace(report, scope=self.scope, source_seconds=round(self.pace.worked, 3))

    def _rolling(self, progress: Progressing) -> Report:
        """Compare the slices whose turn it is, for a limited time: the snapshot stays open meanwhile."""
        started, within = time.monotonic(), self.pipeline.file.verify.full_within
        assert within is not None
        self.plan = plan_turns(self.pipeline.source.dsn, self.tables, self.point, self.verified, within)
        results: dict[str, TableResult] = {}
        turns = self.plan.turns
        compared = compare_pieces(
            self.pipeline.source.dsn,
            self.snapshot.snapshot,
            [Piece(turn.table, turn.slice) for turn in turns],
            self.point,
            self._manner(),
        )
        with closing(compared):
            progress("compare slices", 0, len(turns))
            for done, (turn, (_, result)) in enumerate(zip(turns, compared, strict=True), 1):
                progress("compare slices", done, len(turns))
                if result is not None:
                    self.turns.append((turn, result.equal))
                    results[result.table] = joined(
                        results.get(result.table), replace(result, compared=turn.words)
                    )
                if time.monotonic() - started > min(RUN_SECONDS_MAX, within / 10):
                    break
        return Report(format_lsn(self.snapshot.lsn), results, round(time.monotonic() - started, 3))

    def _whole(self, tables: Sequence[SourceTable], progress: Progressing) -> Report:
        self.whole |= {postgres_name(table.schema, table.table) for table in tables}
        # Executors hash whole tables; of a slice, or of some keys, the rows are read here.
        point = self.pipeline.for_comparing(self.point) if self.scope == FULL else self.point
        return reconcile(
            self.pipeline.source.dsn,
            self.snapshot.snapshot,
            tables,
            point,
            lsn=self.snapshot.lsn,
            progress=progress,
            manner=self._manner(),
        )

    def _manner(self) -> Manner:
        return Manner(self.others, self.pace, self.connections)

    def _changed(self, progress: Progressing) -> Report:
        started = time.monotonic()
        changes = changes_since(self.pipeline, self.tables, self.verified, self.point.position)
        results = {
            name: TableResult(name, 0, 0, left=NO_KEY)
            for table in changes.keyless
            if (name := postgres_name(table.schema, table.table))
        }
        unknown = [each for each in changes.tables if each.touched.unknown]
        known = [each for each in changes.tables if not each.touched.unknown]
        results |= {result.table: result for result in self._by_key(known, progress)}
        if unknown:
            words = {postgres_name(t.table.schema, t.table.table): t.words for t in unknown}
            whole = self._whole([each.table for each in unknown], progress)
            results |= {name: replace(each, compared=words[name]) for name, each in whole.tables.items()}
        return Report(format_lsn(self.snapshot.lsn), results, round(time.monotonic() - started, 3))

    def _by_key(self, tables: Sequence[ChangedTable], progress: Progressing) -> Iterator[TableResult]:
        if not tables:
            return
        mirrors = {(table.schema, table.table): table for table in self.point.tables()}
        dsn, snapshot = self.pipeline.source.dsn, self.snapshot.snapshot
        with sessions(dsn, snapshot, self.connections, self.pace) as server:
            for done, changed in enumerate(tables):
                progress("compare changed rows", done, len(tables))
                name = postgres_name(changed.table.schema, changed.table.table)
                mirror = mirrors.get((changed.table.schema, changed.table.table))
                if mirror is None:
                    yield TableResult(name, 0, 0, {NO_TABLE: 1}, (Difference(NO_TABLE),))
                    continue
                escaped = hashes_escaped(server.first)
                compared = Compared.of(name, changed.table, mirror, escaped=escaped)
                result = self._keys(server, compared, changed)
                if result is not None:
                    yield replace(result, compared=changed.words)

    def _keys(self, server: Sessions, table: Compared, changed: ChangedTable) -> TableResult | None:
        if not table.key:
            return TableResult(table.name, 0, 0, left=NO_KEY)
        try:
            rows = KeyRows(table, changed.touched.keys)
            return compare_keys(server, rows, self.point, self.others, DIFFERENCES_MAX)
        except VanishedError:
            return None
        except ChangedMeanwhileError:
            return rewritten(table.name)
        except TABLES_TROUBLE as error:
            return not_compared(table.name, error)
