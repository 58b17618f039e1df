"""Very many tables are compared in bounded memory and locks, and their pages do not grow with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pyarrow as pa
import pytest

from slotlake.decoder.catalog.publications import source_tables
from slotlake.expectations.reconcile import reconcile
from slotlake.expectations.results import Difference, Report, TableResult
from slotlake.expectations.source_side import SourceTable, Sums
from slotlake.expectations.suite import TABLES_MAX, shortened
from tests.conftest import Database
from tests.expectations.test_reconcile import Column, Lake, Table

_TABLES = 60
_LOCKS = """
SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.pid <> pg_backend_pid() AND c.relname LIKE 'many%%'
"""


@contextmanager
def _snapshot(connection: psycopg.Connection[tuple[str]]) -> Iterator[str]:
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        row = connection.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        yield row[0]


def test_the_server_is_a_few_tables_ahead_and_holds_the_locks_of_few(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"many{i}" for i in range(_TABLES)]
    for name in names:
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text); INSERT INTO {name} VALUES (1, 'a')"
        )
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    rows: list[dict[str, str | None]] = [{"id": "1", "v": "a"}]
    columns = [Column("id"), Column("v")]
    held = {f"public.{name}": Table("public", name, columns, rows) for name in names}
    held["public.many2"] = Table("public", "many2", columns, [{"id": "1", "v": "b"}])
    locks, asked, read, ahead = [], [0], [0], [0]
    sums, text_batches = SourceTable.sums, Lake.text_batches

    def counted_sums(source: SourceTable) -> Sums:
        asked[0] += 1
        return sums(source)

    def counted_batches(lake: Lake, table: str, names: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        read[0] += 1
        ahead[0] = max(ahead[0], asked[0] - read[0])
        return text_batches(lake, table, names)

    monkeypatch.setattr(SourceTable, "sums", counted_sums)
    monkeypatch.setattr(Lake, "text_batches", counted_batches)

    def progress(step: str, done: int, total: int | None) -> None:
        locks.append(int(database.execute(_LOCKS)[0][0]))

    with database.connect() as connection, _snapshot(connection) as snapshot:
        published = source_tables(connection, ["p"])
        report = reconcile(database.dsn, snapshot, published, Lake(held), lsn=1, progress=progress)
    assert [name for name, table in report.tables.items() if not table.equal] == ["public.many2"]
    assert report.tables["public.many2"].differences[0].key == {"id": "1"}
    assert len(report.tables) == _TABLES
    assert max(locks) <= 4
    assert ahead[0] <= 10


def test_pages_show_the_tables_that_differ_and_count_the_others() -> None:
    differs = {
        n: TableResult(n, 2, 1, {"missing in lake": 1}, (Difference("missing in lake"),)) for n in "yz"
    }
    equal = {f"t{i}": TableResult(f"t{i}", 3, 3) for i in range(1000)}
    few = Report("0/1", {"t0": equal["t0"], **differs})
    assert shortened(few) is few
    shown = shortened(Report("0/1", equal | differs))
    assert list(shown.tables)[:2] == ["y", "z"]
    assert len(shown.tables) == TABLES_MAX + 1
    (*_, others) = shown.tables.values()
    assert (others.table, others.equal, others.source_rows) == ("902 more tables, equal", True, 3 * 902)
    all_differ = shortened(Report("0/1", {str(i): differs["y"] for i in range(300)}))
    assert all_differ.tables["200 more tables, different"].totals == {"missing in lake": 200}
