"""Which columns a batch's manifest says that rows are named by."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Database
from tests.decoder.sources import pulled, slotted


def test_a_primary_key_that_is_newer_than_a_change_is_none(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE bag (a int NOT NULL, b int); ALTER TABLE bag REPLICA IDENTITY FULL; "
        "CREATE TABLE renamed (a int PRIMARY KEY, b int NOT NULL);"
        "ALTER TABLE renamed REPLICA IDENTITY FULL;"
        "CREATE TABLE old (a int PRIMARY KEY, b int); ALTER TABLE old REPLICA IDENTITY FULL; "
        "CREATE PUBLICATION p FOR ALL TABLES"
    )
    source, start = slotted(database)
    for statement in (
        "INSERT INTO bag VALUES (1, 2), (1, 2)",
        "DELETE FROM bag WHERE ctid = '(0,1)'",
        "ALTER TABLE bag ADD PRIMARY KEY (a)",
        "INSERT INTO renamed VALUES (1, 2)",
        "ALTER TABLE renamed RENAME a TO c",
        "ALTER TABLE renamed RENAME b TO a",
        "INSERT INTO old VALUES (1, 2)",
    ):
        database.execute(statement)
    keys = {relation.table: relation.key for relation in pulled(source, tmp_path, start).relations}
    assert keys == {"bag": (), "renamed": (), "old": ("a",)}
