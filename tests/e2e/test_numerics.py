"""`numeric` without precision as a decimal by choice: over copy and stream, both roads, and every repair."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.status.validation import validate
from slotlake.spark.direct.choice import ALWAYS, NEVER, SWITCH
from tests.conftest import Database
from tests.e2e.joins import LONG
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(600)
NINES = "9" * 28
_WIDE = Context(prec=400)
# Fits or does not, prints as it is or has zeros at its end; the limits, one below and one past them.
VALUES = (
    *("1.5", "1.50", "0", "0.00", "-3", "100", "NaN", "Infinity", "-Infinity", f"{NINES}.9999999999"),
    *(
        f"1{'0' * 28}",
        "0.0000000001",
        "0.00000000010",
        "0.00000000001",
        "1e-300",
        "-1e300",
        "12345678901234.5",
    ),
)
ROADS = [("binary: true\n", ALWAYS), ("", NEVER), ("", ALWAYS), ("binary: true\n", NEVER)]
TABLE = "CREATE TABLE t (id int PRIMARY KEY, total numeric, v int)"


def _filled(database: Database, name: str = "t", start: int = 0) -> None:
    listed = ", ".join(f"({start + i}, '{value}', 0)" for i, value in enumerate(VALUES))
    database.execute(f"INSERT INTO {name} VALUES {listed}")


def _file(database: Database, folder: Path, tables: list[str], *, source: str = "", extra: str = "") -> Path:
    extra = extra or "types: {numerics: 'decimal(38, 10)'}\nmode: [mirror, history, append]\n"
    return pipeline_file(folder, database, tables, source=source, extra=extra)


def _sum(pipeline: Pipeline, table: str = "t") -> Any:
    return pipeline.query(f"SELECT sum(total) FROM {table}", engine="duckdb").rows[0][0]


@pytest.mark.parametrize(("source", "road"), ROADS if LONG else ROADS[:2])
def test_copy_and_stream(
    database: Database,
    connect: str,
    tmp_path: Path,
    source: str,
    road: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is rounded: rows, verify, history and the sum of what fits are the source's."""
    monkeypatch.setenv(SWITCH, road)
    database.execute(TABLE + "; CREATE TABLE loose (total numeric); ALTER TABLE loose REPLICA IDENTITY FULL")
    database.execute("CREATE TABLE k (total numeric PRIMARY KEY, v int)")
    _filled(database)
    database.execute("INSERT INTO loose SELECT total FROM t; INSERT INTO loose SELECT total FROM t")
    database.execute("INSERT INTO k SELECT DISTINCT ON (total) total, 0 FROM t ORDER BY total, id")
    tables, extra = ["t", "k"], "types: {numerics: 'decimal(38, 10)'}\n"
    if road == NEVER:  # what is for Spark always
        tables, extra = ["t", "loose", "k"], ""
    file = _file(database, tmp_path, tables, source=source, extra=extra)
    file.write_text(file.read_text().replace("  'k': {}", "  'k': {types: {total: 'decimal(38,10)'}}"))
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        assert_equal(database, pipeline, tables)
        columns = {c.column: c for t in pipeline.types().tables for c in t.columns if c.column == "total"}
        assert columns["total"].iceberg == "decimal(38,10)"
        _filled(database, start=100)
        database.execute(
            "UPDATE t SET total = total + 0.10 WHERE id IN (0, 3, 9); UPDATE t SET v = 1 WHERE id < 8;"
            "UPDATE t SET total = 1.500 WHERE id = 1; DELETE FROM t WHERE id = 6;"
            "UPDATE loose SET total = total * 2 WHERE total <> 'NaN'; DELETE FROM loose WHERE total > 1e200;"
            "UPDATE k SET v = 1; UPDATE k SET total = 1.5000 WHERE total = 1.5;"
            "DELETE FROM k WHERE total = 0;"
            "UPDATE k SET total = 7.10 WHERE total = 'NaN'; INSERT INTO k VALUES (0.000, 3)"
        )
        pipeline.sync()
        assert_equal(database, pipeline, tables)
        assert pipeline.verify().equal
        database.execute("UPDATE t SET total = 2 WHERE id = 5")
        pipeline.backfill("t", where="id < 20")
        assert_equal(database, pipeline, tables)
        with localcontext(_WIDE):  # 28 digits are not enough
            fitting = [Decimal(str(total)) for _, total, _ in pipeline.rows("t") if _fits(total)]
            assert Decimal(_sum(pipeline)) == sum(fitting)
        pipeline.backfill("t")
        assert pipeline.verify().equal


def _fits(total: str | None) -> bool:
    if total is None or total[-1] in "Ny":
        return False
    value = Decimal(total)
    return abs(value) < Decimal(10) ** 28 and value == value.quantize(Decimal("1e-10"))


def test_types_that_change_and_choices_that_change(database: Database, connect: str, tmp_path: Path) -> None:
    """numeric to numeric(10,2) and back; the choice taken back; a slot that is lost."""
    database.execute(TABLE)
    _filled(database)
    file = _file(database, tmp_path, ["t"])
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        database.execute("DELETE FROM t WHERE total = 'NaN' OR abs(total) > 1e7; UPDATE t SET v = 3")
        pipeline.sync()
        database.execute("ALTER TABLE t ALTER total TYPE numeric(10,2); UPDATE t SET v = 4")
        pipeline.sync()
        assert_equal(database, pipeline, ["t"])
        assert _iceberg(pipeline) == "decimal(10,2)"
        database.execute("ALTER TABLE t ALTER total TYPE numeric; INSERT INTO t VALUES (50, 1.125, 5)")
        pipeline.sync()
        assert_equal(database, pipeline, ["t"])
        assert _iceberg(pipeline) == "decimal(38,10)"
        database.execute("ALTER TABLE t ADD COLUMN more numeric; UPDATE t SET more = 2.50")
        pipeline.sync()
        assert_equal(database, pipeline, ["t"])
        assert pipeline.verify().equal
        database.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE database = current_database()"
        )
        database.execute("UPDATE t SET total = 3.10 WHERE id = 50")
        pipeline.recover(carry_out=True)
        assert_equal(database, pipeline, ["t"])
        assert pipeline.verify().equal
    file.write_text(file.read_text().replace("decimal(38, 10)", "text"))
    with Pipeline.open(file, remote=connect) as pipeline:
        with pytest.raises(PipelineFileError, match="chooses other types"):
            pipeline.sync()
        pipeline.backfill("t")
        assert_equal(database, pipeline, ["t"])
        assert _iceberg(pipeline) == "string"
        pipeline.sync()


def _iceberg(pipeline: Pipeline) -> str:
    return next(c.iceberg for t in pipeline.types().tables for c in t.columns if c.column == "total")


def test_fail_and_what_validate_says(database: Database, connect: str, tmp_path: Path) -> None:
    """`on_lossy: fail` sets the table aside for a value that does not fit, not for one with zeros."""
    database.execute(TABLE + "; INSERT INTO t VALUES (1, 1.50, 0)")
    file = _file(database, tmp_path, ["t"], extra="mode: mirror\n")
    (warning,) = [check for check in validate(file).checks if check.name == "tables"]
    assert warning.result == "warning"
    assert "public.t.total" in warning.what
    assert "decimal(38,10)" in warning.way_out
    text = file.read_text()
    for choice in ("types: {numerics: text}\n", "types: {numerics: 'decimal(38,10)'}\n"):
        file.write_text(text + choice)
        assert [c.result for c in validate(file).checks if c.name == "tables"] == ["ok"]
    for wrong in ("'decimal(39,2)'", "'decimal(5,6)'", "decimal", "double", "list"):
        file.write_text(text + f"types: {{numerics: {wrong}}}\n")
        assert validate(file).checks[-1].result == "error"
    file.write_text(text.replace("  't': {}", "  't': {types: {v: 'decimal(38,10)'}}"))
    assert next(c.result for c in validate(file).checks if c.name == "publications") == "error"
    file.write_text(text.replace("  't': {}", "  't': {types: {'*': 'decimal(38,10)'}, on_lossy: fail}"))
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        database.execute("INSERT INTO t VALUES (2, 2.5000, 0)")
        assert pipeline.sync().set_aside == {}
        database.execute("INSERT INTO t VALUES (3, 0.00000000001, 0)")
        assert "on_lossy is fail" in pipeline.sync().set_aside["public.t"]
        assert sorted(pipeline.rows("t")) == [("1", "1.50", "0"), ("2", "2.5000", "0")]
        database.execute("UPDATE t SET total = 3 WHERE id = 3")
        pipeline.resume("t")
        assert_equal(database, pipeline, ["t"])


def test_a_value_that_the_copy_meets_is_its_tables_trouble(
    database: Database, connect: str, tmp_path: Path
) -> None:
    """`on_lossy: fail` at `init`: the other tables are copied, and this one once the value is corrected."""
    database.execute(
        TABLE + "; INSERT INTO t VALUES (1, 0.00000000001, 0); CREATE TABLE u (id int PRIMARY KEY)"
    )
    database.execute("INSERT INTO u VALUES (1)")
    file = _file(database, tmp_path, ["t", "u"], extra="mode: mirror\n")
    text = file.read_text()
    file.write_text(text.replace("'t': {}", "'t': {types: {'*': 'decimal(38,10)'}, on_lossy: fail}"))
    with Pipeline.open(file, remote=connect) as pipeline:
        report = pipeline.init()
        assert "on_lossy is fail" in report.set_aside["public.t"]
        assert [table.table for table in report.tables] == ["public.u"]
        database.execute("UPDATE t SET total = 3; INSERT INTO u VALUES (2)")
        assert pipeline.sync().set_aside.keys() == {"public.t"}
        pipeline.resume("t")
        assert_equal(database, pipeline, ["t", "u"])
        assert pipeline.verify().equal
