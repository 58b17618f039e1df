"""A byte flips on a disk, of the source or of the lake, which no change log tells: verification does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.expectations.results import UNREADABLE
from slotlake.infra.local.postgres import EmbeddedPostgres, Version, temporary_postgres
from slotlake.infra.verify import rolling
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.e2e.rolled import let_pass
from tests.storage import files_folder, files_in

pytestmark = pytest.mark.timeout(600)
VERIFY = "verify: {changed: every_verify, full_within: 1h, source_load: 1}\n"


def _flip(server: EmbeddedPostgres, database: Database, text: str) -> None:
    """Stop the server, flip one bit of a text in a table's file, start it again."""
    ((path,),) = database.execute("SELECT pg_relation_filepath('orders')")
    server.stop()
    file = server.data / str(path)
    content = bytearray(file.read_bytes())
    assert content.count(text.encode()) == 1, text
    content[content.index(text.encode())] ^= 1
    file.write_bytes(content)
    server.start()


@contextmanager
def _pipeline(
    version: Version, folder: Path, *, flipped: bool = True
) -> Iterator[tuple[EmbeddedPostgres, Database, Any]]:
    with temporary_postgres(version=version) as server:
        database = Database(server, "postgres")
        database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, v text); CREATE TABLE others (id int PRIMARY KEY);"
            "INSERT INTO orders SELECT g, 'value ' || g || ' end' FROM generate_series(1, 2000) g;"
            "INSERT INTO others VALUES (1), (2); ANALYZE"
        )
        file = pipeline_file(folder, database, ["orders", "others"], extra=VERIFY)
        with Pipeline.open(file) as pipeline:
            pipeline.init()
            if flipped:
                _flip(server, database, "value 1234 end")
            yield server, database, pipeline


def test_without_checksums_the_row_is_named(
    session: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no change, so the changed rows are equal; all rows are not, and a slice has it in its turn."""
    monkeypatch.setattr(rolling, "SLICE_ROWS", 500)
    with _pipeline(16, tmp_path / "files") as (_, database, pipeline):
        assert database.execute("SELECT v FROM orders WHERE id = 1234") == [("walue 1234 end",)]
        assert pipeline.verify("changed").equal
        found: list[dict[str, Any]] = []
        for _ in range(8):
            let_pass(pipeline, 600)
            for table in pipeline.verify("rolling").tables.values():
                found += [dict(each.key) for each in table.differences]
        assert found[0] == {"id": "1234"}
        assert found.count(found[0]) == len(found)
        report = pipeline.verify()
        assert [dict(each.key) for each in report.tables["public.orders"].differences] == found[:1]
        assert report.tables["public.others"].equal
        # The lake has the right value.  Who says that the source is right all the same reads the row again.
        pipeline.backfill(["public.orders"], where="id = 1234")
        assert pipeline.verify().equal
        assert_equal(database, pipeline, ["orders", "others"])


def test_with_checksums_the_server_refuses_the_page(session: object, tmp_path: Path) -> None:
    """The table is named; the other one is compared, and micro-batches go on."""
    with _pipeline(18, tmp_path / "files") as (_, database, pipeline):
        report = pipeline.verify()
        assert not report.equal
        orders = report.tables["public.orders"]
        assert orders.totals == {UNREADABLE: 1}
        assert "invalid page in block" in orders.differences[0].reason
        assert report.tables["public.others"].equal
        database.execute("INSERT INTO others VALUES (3); UPDATE orders SET v = 'x' WHERE id = 1")
        pipeline.sync()
        changed = pipeline.verify("changed").tables
        assert {name: table.equal for name, table in changed.items()} == {
            "public.orders": True,  # its row is on another page
            "public.others": True,
        }


def test_a_damaged_page_keeps_recover_from_one_table_alone(session: object, tmp_path: Path) -> None:
    with _pipeline(18, tmp_path / "files") as (_, database, pipeline):
        database.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.source.slot])
        database.execute("INSERT INTO others VALUES (3)")
        repairs = {repair.table: repair for repair in pipeline.recover().tables}
        assert "invalid page in block" in repairs["public.orders"].why
        assert repairs["public.others"].rows == 1


def test_a_damaged_file_of_the_lake_is_one_tables_trouble(session: object, tmp_path: Path) -> None:
    with _pipeline(16, tmp_path / "files", flipped=False) as (_, database, pipeline):
        place = files_folder(tmp_path / "files")
        (file,) = [each for each in files_in(place) if each.suffix == ".parquet" and "orders" in each.parts]
        whole = file.read_bytes()
        file.write_bytes(whole[:4] + b"\xff" * 100 + whole[104:])
        report = pipeline.verify()
        assert report.tables["public.orders"].totals == {UNREADABLE: 1}
        assert file.name in report.tables["public.orders"].differences[0].reason
        assert report.tables["public.others"].equal
        pipeline.backfill(["public.orders"])
        assert pipeline.verify().equal
        assert_equal(database, pipeline, ["orders", "others"])
