"""Gates: the user's suites of Great Expectations that a batch must meet before it is published.

A gated suite is checked on what a batch has staged, so the table is seen as it would become.  A batch that
does not meet one is not published, for no table: the lake stays at its consistency point.  The refusal is
noted; the next pull takes a longer batch from the same position, which has the corrections that the source
has committed since.  Invariant: a batch that has met its gates once is not checked again, so a publication
that was killed in the middle goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotlake.decoder.changelog.batches import Batch, batch_positions
from slotlake.decoder.errors import GateError, LakeError
from slotlake.infra.opened.machine_lock import exclusive
from slotlake.infra.state.notes import GATE, StateFile

if TYPE_CHECKING:
    from slotlake.expectations.results import SuiteResult
    from slotlake.expectations.suites.of_users import TableSuite, UserProject
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.names import LakeName

DOCS_SECONDS = 600.0
_FAILED_MAX = 3


def table_suites(file: PipelineFile, *, gate: bool) -> dict[tuple[str, str], list[TableSuite]]:
    """Return the suites of the pipeline file, by schema and name of the table.

    Args:
        gate: those that are gates; else those that a verification checks.
    """
    from slotlake.expectations.suites.of_users import TableSuite
    from slotlake.spark.names import parse_postgres_name, postgres_name

    chosen: dict[tuple[str, str], list[TableSuite]] = {}
    folder = file.path.parent
    for table, section in file.tables.items():
        name = parse_postgres_name(table)
        suites = [
            TableSuite(postgres_name(*name), each.suite, folder / each.suite if each.is_file else None)
            for each in section.expectations
            if each.gate == gate
        ]
        if suites:
            chosen[name] = suites
    return chosen


def user_project(file: PipelineFile) -> UserProject:
    """Return the user's Great Expectations project, as the pipeline file has it."""
    from slotlake.expectations.suites.of_users import UserProject

    section = file.expectations
    if section.project is None:
        return UserProject()
    return UserProject(file.path.parent / section.project, section.checkpoint)


def suites_read(file: PipelineFile) -> int:
    """Read all suites of the pipeline file, and the checkpoint; return how many suites there are.

    Raises:
        SuiteError: one cannot be read.
    """
    from slotlake.expectations.suites.of_users import read_suite

    project = user_project(file)
    suites = [
        each for gate in (True, False) for own in table_suites(file, gate=gate).values() for each in own
    ]
    for each in suites:
        read_suite(each, project)
    project.actions()
    return len(suites)


class Gates:
    """The user's suites before a batch of an open pipeline is published."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline, self._file, self._lake = pipeline, pipeline.file, pipeline.lake

    def require_gates(self, batch: Batch) -> None:
        """Check the gates of a batch that is staged.

        Args:
            batch: the batch, not yet published.

        Raises:
            GateError: the rows do not meet a suite; nothing was published.
            SuiteError: a suite cannot be read.
            CheckError: a suite could not be evaluated.
        """
        gates = table_suites(self._file, gate=True)
        if not gates or _note(self._file).mapping().get("met") == batch.digest:
            return
        from slotlake.expectations.suites.of_users import Rows, check

        rows = {
            suite: Rows(
                self._pipeline.session.table(f"{name.sql(self._lake.catalog)}.branch_stage"),
                partial(self.rows_yesterday, name),
            )
            for name, table in _staged_tables(self._lake, batch, gates)
            for suite in gates.get(table, ())
        }
        if not rows:
            return
        folder = self._file.state_dir / "expectations"
        with exclusive(
            folder, self._pipeline.name, DOCS_SECONDS, "publish: gates"
        ):  # a verification writes there too
            results = check(rows, user_project(self._file), folder, f"batch {batch.name}")
        if failed := [result for result in results if not result.success]:
            _note(self._file).write({"refused": batch.name, "suites": [str(result) for result in failed]})
            raise _refusal(self._file.state_dir, self._pipeline.name, batch, failed)
        _note(self._file).write({"met": batch.digest})

    def rows_yesterday(self, name: LakeName) -> int:
        """Return how many rows a table had a day ago, or at the oldest kept point if that is younger.

        Args:
            name: the table's name in the lake.
        """
        from slotlake.spark.publish.points import oldest_point
        from slotlake.spark.publish.position import commits_name
        from slotlake.spark.read.point import ReadPoint

        try:
            point = ReadPoint.of(self._lake, datetime.now(UTC) - timedelta(days=1))
        except LakeError:
            point = ReadPoint.latest(self._lake)
            oldest = oldest_point(point.pinned[commits_name(self._lake.namespace)].metadata)
            point = point if oldest is None else ReadPoint.at(self._lake, oldest)
        table = point.mirrors().get(name)
        if table is None:
            return 0
        snapshot = point.snapshot_id(table.source_name)
        sql = f"SELECT count(*) FROM {name.sql(self._lake.catalog)} VERSION AS OF {snapshot}"
        return int(self._pipeline.session.sql(sql).collect()[0][0])

    def forget_refused(self, position: int) -> None:
        """Remove a refused batch from the change log, so that a longer one takes its place.

        Args:
            position: the lake's position, at which the batch begins.
        """
        from slotlake.spark.publish import sidecar

        name = str(_note(self._file).mapping().get("refused", ""))
        positions = batch_positions(name)
        if positions is None:
            return
        if positions[0] == position:
            path = self._file.changelog_dir / name
            shutil.rmtree(path, ignore_errors=True)
            shutil.rmtree(sidecar.place(path), ignore_errors=True)
            if self._pipeline.stored is not None:
                self._pipeline.stored.forget([name, sidecar.place(path).name])
        _note(self._file).write({})


def refusal(file: PipelineFile) -> list[str]:
    """Return what the last batch was refused for; nothing if it was not refused."""
    suites = _note(file).mapping().get("suites", [])
    return [str(each) for each in suites]


def _note(file: PipelineFile) -> StateFile:
    return GATE.of(file.state_dir)


def _staged_tables(
    lake: LakeSettings, batch: Batch, gates: Collection[tuple[str, str]]
) -> Iterator[tuple[LakeName, tuple[str, str]]]:
    """The mirrors with gates for which the batch has staged something: name in the lake, schema and name."""
    from slotlake.spark.catalog.base import load_all
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.names import lake_table
    from slotlake.spark.publish import sidecar
    from slotlake.spark.publish.publication import touched_tables
    from slotlake.spark.tables.metadata import is_staged
    from slotlake.spark.tables.schema import schema_of

    gated = {lake_table(lake.namespace, *table) for table in gates}
    touched = gated & touched_tables(lake, batch, sidecar.read(batch)).keys()
    with open_catalog(lake) as catalog:
        tables = load_all(catalog, sorted(catalog.pointers_of(touched)))  # publish knows what the others are
    for name, table in tables.items():
        if is_staged(table.metadata):
            schema = schema_of(table.metadata, name)
            yield name, (schema.schema, schema.table)


def _refusal(state_dir: Path, name: str, batch: Batch, failed: Sequence[SuiteResult]) -> GateError:
    from slotlake.expectations.suite import index

    more = f", and {len(failed) - _FAILED_MAX} more suites" if len(failed) > _FAILED_MAX else ""
    what: Any = "; ".join(map(str, failed[:_FAILED_MAX])) + more
    return GateError(
        f"the batch is not published: {what}",
        where=f"batch {batch.name}, pipeline {name!r}",
        way_out="correct the rows at the source: the next sync takes the correction into the same batch. Or "
        "set gate: false for the suite, to publish the rows as they are. The Data Docs say more: "
        f"{index(state_dir / 'expectations')}",
    )
