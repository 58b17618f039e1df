"""A transaction larger than the memory for it: applied in slices, killed between two, published once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.e2e.test_crash import run_cli

pytestmark = pytest.mark.timeout(600)

TABLES = ["accounts", "log", "emptied"]
# Per table and slice about two thousand changes.
EXTRA = """
spark: {memory_mb: 1}
"""


def _fill(database: Database) -> None:
    database.execute(
        "CREATE TABLE accounts (id int PRIMARY KEY, balance numeric, note text);"
        "ALTER TABLE accounts ALTER note SET STORAGE EXTERNAL;"
        "CREATE TABLE log (account int, note text); ALTER TABLE log REPLICA IDENTITY FULL;"
        "CREATE TABLE emptied (id int PRIMARY KEY, v int);"
        "INSERT INTO accounts SELECT g, g, repeat('large ', 600) || g FROM generate_series(1, 300) g;"
        "INSERT INTO accounts SELECT g, g, 'small' FROM generate_series(301, 4000) g;"
        "INSERT INTO log SELECT g % 7, 'a' FROM generate_series(1, 50) g;"
        "INSERT INTO emptied SELECT g, g FROM generate_series(1, 3000) g"
    )


ONE_TRANSACTION = (
    "BEGIN",
    "UPDATE accounts SET balance = balance + 1",
    "UPDATE accounts SET id = id + 100000 WHERE id <= 200",
    "INSERT INTO log SELECT g % 7, 'a' FROM generate_series(1, 2000) g",
    "INSERT INTO emptied SELECT g, 0 FROM generate_series(5000, 8000) g",
    "TRUNCATE emptied",
    "UPDATE accounts SET balance = 'NaN' WHERE id BETWEEN 3000 AND 3100",
    "ALTER TABLE accounts ADD COLUMN later int",
    "DELETE FROM log WHERE ctid IN (SELECT min(ctid) FROM log GROUP BY account)",
    "UPDATE accounts SET id = id - 100000, later = 5 WHERE id > 100100",
    "INSERT INTO emptied SELECT g, 1 FROM generate_series(2000, 5500) g",
    "DELETE FROM accounts WHERE id BETWEEN 1000 AND 2500",
    "UPDATE log SET note = 'b' WHERE account = 3",
    "INSERT INTO accounts SELECT g, 0, 'again', 1 FROM generate_series(2400, 2500) g",
    "COMMIT",
)


def _derived_tables_agree(pipeline: Any) -> None:
    """The transaction changes every account; a slice's end is no version, and numbers go on after it."""
    versions = "SELECT count_if(is_open), count_if(NOT is_open), count_if(valid_from_lsn = valid_to_lsn)"
    assert pipeline.query(f"{versions} FROM accounts__history").rows == [("2600", "4001", "0")]
    numbers = (
        "SELECT count(*), max(seq), count(DISTINCT seq) FROM accounts__changes WHERE seq > 0 GROUP BY lsn"
    )
    assert pipeline.query(f"{numbers} ORDER BY 1").rows == [("1",) * 3, ("6003",) * 3]


def test_one_transaction_in_slices(database: Database, connect: str, tmp_path: Path) -> None:
    _fill(database)
    file = pipeline_file(tmp_path, database, TABLES, extra=EXTRA)
    text = file.read_text()
    assert "'accounts': {}" in text
    file.write_text(text.replace("'accounts': {}", "'accounts': {mode: [mirror, history, append]}"))
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        before = ReadPoint.latest(pipeline.lake)
        with database.connect() as connection:
            for statement in ONE_TRANSACTION:
                connection.execute(statement.encode())
        killed = run_cli(connect, ["sync", str(file)], "apply.between_slices:4")
        assert killed.returncode == -9, killed.stderr
        assert ReadPoint.latest(pipeline.lake).position == before.position
        database.execute("UPDATE accounts SET balance = 1 WHERE id = 700")
        pipeline.sync()
        assert_equal(database, pipeline, TABLES)
        assert pipeline.verify().equal
        _derived_tables_agree(pipeline)
