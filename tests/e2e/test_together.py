"""Everything in one history: changes, columns, keys, filters, modes, and runs that die; PostgreSQL judges."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from psycopg import sql

from slotlake import Pipeline
from slotlake.decoder import failpoints
from slotlake.decoder.lsn import parse_lsn
from slotlake.infra.local.postgres import EmbeddedPostgres
from slotlake.infra.source import ddl_trigger
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.replay.scratch import scratch_of
from tests.conftest import Database, drop_database
from tests.e2e.oracle import pipeline_file
from tests.e2e.test_modes import _told
from tests.e2e.together import SETUP, STEADY, TABLES, held, histories, run, sections, seen

pytestmark = pytest.mark.timeout(3600)

EXAMPLES = int(os.environ.get("SLOTLAKE_TEST_TOGETHER", "1"))


class Died(BaseException):
    """The process, at a failpoint."""


@pytest.fixture(scope="module")
def shop(
    pg: EmbeddedPostgres, session: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Database, Path]]:
    """One lake that all histories go through, one after the other."""
    name = f"together_{os.getpid()}"
    with psycopg.connect(pg.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        admin.execute(
            sql.SQL("ALTER DATABASE {} SET logical_decoding_work_mem = '64kB'").format(sql.Identifier(name))
        )
    database = Database(pg, name)
    database.execute(SETUP)
    database.execute(ddl_trigger.INSTALL)
    file = pipeline_file(tmp_path_factory.mktemp("together"), database, [])
    file.write_text(file.read_text().replace("tables:\n", sections()))
    with Pipeline.open(file) as pipeline:
        pipeline.init()
    yield database, file
    drop_database(pg, name)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    print_blob=True,
    phases=(Phase.explicit, Phase.generate),  # an example takes long: none is made smaller
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.large_base_example,
    ],
)
@given(history=histories)
def test_any_history(
    shop: tuple[Database, Path], monkeypatch: pytest.MonkeyPatch, history: list[tuple[list[list[str]], str]]
) -> None:
    database, file = shop
    points: dict[str, dict[str, Counter[Any]]] = {}
    wrong: dict[str, Any] = {}
    for number, (transactions, failpoint) in enumerate(history):
        with database.connect() as connection:
            for transaction in transactions:
                run(connection, transaction)
            seen(connection)
        if failpoint:
            _dies(file, failpoint, monkeypatch)
        with Pipeline.open(file) as pipeline:
            lsn = pipeline.sync().lsn
            points[lsn] = held(database)
            wrong |= _different(pipeline, points[lsn], f"after piece {number}")
    with Pipeline.open(file) as pipeline:
        wrong |= _past(pipeline, points)
        wrong |= _replayed(pipeline, next(iter(points)), len(history[0][0]))
    assert not wrong, f"{_told_of(wrong)}\n{_written(history)}"


def _told_of(wrong: dict[str, Any]) -> str:
    return "\n".join(f"{where}: {what}" for where, what in wrong.items())


def _written(history: list[tuple[list[list[str]], str]]) -> str:
    return "\n".join(
        "\n".join("; ".join(transaction) for transaction in transactions) + f"\n-- dies at: {failpoint}"
        for transactions, failpoint in history
    )


def _dies(file: Path, failpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing catches what ends it; what it leaves is what a killed process leaves."""

    def die(*_: int) -> None:
        raise Died

    monkeypatch.setenv("SLOTLAKE_FAILPOINT", failpoint)
    monkeypatch.setattr(failpoints, "os", SimpleNamespace(environ=os.environ, getpid=os.getpid, kill=die))
    failpoints._reached.clear()
    try:
        with Pipeline.open(file) as pipeline:
            pipeline.sync()
    except Died:
        pass
    finally:
        monkeypatch.undo()


def _different(pipeline: Any, expected: dict[str, Counter[Any]], when: str) -> dict[str, Any]:
    """The mirrors, and the open versions of the histories, beside the source."""
    cut, found = ReadPoint.latest(pipeline.lake), {}
    for table, rows in expected.items():
        columns = [column.name for column in cut.schema(table).live]
        mirror = Counter(cut.rows(table))
        batches = cut.open_versions(table, columns) or ()
        versions = Counter(
            row for b in batches for row in zip(*(c.to_pylist() for c in b.columns), strict=True)
        )
        for what, actual in (("mirror", mirror), ("history", versions)):
            if actual != rows:
                found[f"{table}, {what} {when}"] = _short(rows, actual)
    return found


def _short(expected: Counter[Any], actual: Counter[Any]) -> Any:
    """Missing, extra; large values cut."""

    def cut(rows: Counter[Any]) -> list[Any]:
        return [[v if v is None else v[:9] for v in row] for row in rows.elements()]

    return cut(expected - actual), cut(actual - expected)


def _past(pipeline: Any, points: dict[str, dict[str, Counter[Any]]]) -> dict[str, Any]:
    """Every point, in the mirrors as they were and in the tables beside those that kept their columns."""
    found = {}
    told = {table: _told(pipeline, pipeline.lake, table) for table in STEADY}
    for lsn, tables in points.items():
        for table, rows in tables.items():
            if (actual := Counter(pipeline.rows(table, at=lsn))) != rows:
                found[f"{table}, mirror at {lsn}"] = _short(rows, actual)
        for table in STEADY:
            for what, actual in (
                ("history", told[table].at(parse_lsn(lsn))),
                ("changes", told[table].replayed(parse_lsn(lsn))),
            ):
                if actual != tables[table]:
                    found[f"{table}, {what} at {lsn}"] = _short(tables[table], actual)
    return found


def _replayed(pipeline: Any, start: str, transactions: int) -> dict[str, Any]:
    """From the first point on, in batches of another size: what the lake has now."""
    report = pipeline.replay("scratch", start=start, transactions=transactions)
    scratch, found = scratch_of(pipeline.lake, "scratch"), {}
    pair = [ReadPoint.latest(lake) for lake in (pipeline.lake, scratch)]
    for table in TABLES:
        if f"shop.{table}" in report.copied_meanwhile:
            continue
        live, again = (Counter(cut.rows(table)) for cut in pair)
        if live != again:
            found[f"{table}, replayed"] = _short(live, again)
    for table in STEADY:
        if f"shop.{table}" not in report.copied_meanwhile:
            told = [_told(pipeline, lake, table) for lake in (pipeline.lake, scratch)]
            if told[0] != told[1]:
                found[f"{table}, beside, replayed"] = [
                    (len(t.versions - o.versions), len(t.changes - o.changes)) for t, o in (told, told[::-1])
                ]
    return found
