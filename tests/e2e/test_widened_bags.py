# ruff: noqa: E501  (a statement is read as a line)
"""Tables without a key whose columns become wider and are not written anew: rows of both types in one batch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from tests.conftest import Database
from tests.e2e.oracle import differences, pipeline_file

pytestmark = pytest.mark.timeout(600)

MONEY = "a int, n numeric(6,2)"
NAMES = "a int, n varchar(10)"
BOTH = "n numeric(6,2), w varchar(10), d numeric(4,0)"
# Table → its columns, its rows, how it is widened, a row that only the wider type can hold.
KINDS = {
    "money": (MONEY, "g % 7, g % 5 + 0.10", "ALTER n TYPE numeric(12,2)", "1, 1234567890.12"),
    "names": (NAMES, "g % 7, 'n' || g % 5", "ALTER n TYPE text", "1, repeat('long ', 20)"),
    "longer": (NAMES, "g % 7, 'n' || g % 5", "ALTER n TYPE varchar(200)", "1, repeat('long ', 20)"),
    "unbound": (NAMES, "g % 7, 'n' || g % 5", "ALTER n TYPE varchar", "1, repeat('long ', 20)"),
    "huge": (
        MONEY,
        "g % 7, g % 5 + 0.10",
        "ALTER n TYPE numeric(30,2)",
        "1, 1234567890123456789012345678.12",
    ),
    "mixed": (
        BOTH,
        "g % 5, 'n' || g % 3, g % 2",
        "ALTER n TYPE numeric(18,2), ALTER w TYPE text, ALTER d TYPE numeric(20,0)",
        "1e15, repeat('long ', 20), 1e19",
    ),
    "alone": ("n numeric(6,2)", "g % 9 + 0.25", "ALTER n TYPE numeric(12,2)", "1234567890.12"),
    "kept": (MONEY, "g % 7, g % 5 + 0.10", "ALTER n TYPE numeric(12,2)", "1, 1234567890.12"),
    "once": (MONEY, "g, g + 0.10", "ALTER n TYPE numeric(12,2)", "1, 1234567890.12"),
    "emptied": (MONEY, "g % 7, g % 5 + 0.10", "ALTER n TYPE numeric(12,2)", "1, 1234567890.12"),
    "several": (
        MONEY,
        "g % 7, g % 5 + 0.10",
        "ALTER n TYPE numeric(9,2); ALTER TABLE several ALTER n TYPE numeric(12,2)",
        "1, 1234567890.12",
    ),
}

# The lake's type stays what it is, so these alone are not copied again.
TEXTS = {"names", "longer", "unbound"}


def _changes(table: str) -> list[str]:
    """Rows from before the batch go and change, before and after the columns became wider."""
    _, _, widen, far = KINDS[table]
    some = f"ctid = ANY (ARRAY(SELECT ctid FROM {table} ORDER BY {{}} LIMIT {{}}))"
    if table == "once":  # one row goes, whose like stands there once
        return [f"ALTER TABLE {table} {widen}", f"DELETE FROM {table} WHERE a = 4"]
    emptied = [f"TRUNCATE {table}", f"INSERT INTO {table} VALUES (1, 2.50), (1, 2.50)"]
    return [
        *(emptied if table == "emptied" else ()),
        f"UPDATE {table} SET n = (SELECT max(n) FROM {table}) WHERE {some.format('1', 3)}",
        f"DELETE FROM {table} WHERE {some.format('1 DESC', 2)}",
        *f"ALTER TABLE {table} {widen}".split("; "),
        f"UPDATE {table} SET n = (SELECT min(n) FROM {table}) WHERE {some.format('ctid', 4)}",
        f"DELETE FROM {table} WHERE {some.format('ctid DESC', 3)}",
        f"INSERT INTO {table} VALUES ({far}), ({far}), ({far})",
        f"DELETE FROM {table} WHERE ctid = (SELECT max(ctid) FROM {table})",
        f"UPDATE {table} SET n = (SELECT min(n) FROM {table}) WHERE ctid = (SELECT max(ctid) FROM {table})",
    ]


def _take(database: Database, statements: list[str]) -> None:
    with database.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_rows_of_both_types_in_one_batch(database: Database, session: Any, tmp_path: Path) -> None:
    """Equal after the batch, after one more, and verified; numbers are copied again, texts are not."""
    for table, (columns, rows, _, _) in KINDS.items():
        database.execute(f"CREATE TABLE {table} ({columns}); ALTER TABLE {table} REPLICA IDENTITY FULL")
        database.execute(f"INSERT INTO {table} SELECT {rows} FROM generate_series(1, 60) g")
    listed = [table for table in KINDS if table != "kept"]
    file = pipeline_file(tmp_path, database, listed, extra="  kept: {mode: [mirror, history, append]}\n")
    wrong: dict[str, Any] = {}
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        for table in KINDS:
            _take(database, _changes(table))
        report = pipeline.sync()
        wrong["conflicts"] = report.conflicts
        wrong["after"] = differences(database, pipeline, list(KINDS))
        copied = {t.table.removeprefix("public.") for t in pipeline.status().tables if t.copied_again}
        wrong["copied"] = copied ^ (set(KINDS) - TEXTS)
        for table in KINDS:
            _take(
                database, [f"DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {table} LIMIT 5))"]
            )
        pipeline.sync()
        wrong["later"] = differences(database, pipeline, list(KINDS))
        wrong["verify"] = {name: each for name, each in pipeline.verify().tables.items() if not each.equal}
    assert {when: found for when, found in wrong.items() if found} == {}
