"""Keys whose equality at the source is not that of their text: the row is told by its text all the same.

citext, a nondeterministic collation and numeric hold values that are equal and print differently.  The source
lets only one of them in, and says the old key whenever its bytes change (`HeapDetermineColumnsInfo` compares
bytes, not by the type's operator), so the text is the identity.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(600)
TABLES = ["icu", "ci", "numbers", "bag"]
SETUP = """
CREATE EXTENSION citext;
CREATE COLLATION anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE icu (k text COLLATE anycase PRIMARY KEY, v text COLLATE anycase, n int);
CREATE TABLE ci (k citext PRIMARY KEY, v citext, x xml, a citext[]);
CREATE TABLE numbers (k numeric PRIMARY KEY, v int);
CREATE TABLE bag (v text COLLATE anycase, c citext, x xml, n numeric);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO icu VALUES ('a', 'x', 1), ('Straße', 'X', 2), ('b', NULL, 3), ('', '', 4), ('z', 'z', 5);
INSERT INTO ci VALUES ('a', 'X', '<a b="1"/>', '{A,a}'), ('B', 'x', '<?xml version="1.0"?><b/>', NULL),
    ('', '', 'text &amp; text', '{}'), ('Ä', NULL, NULL, '{NULL}');
INSERT INTO numbers VALUES (1.0, 1), (2, 2), ('NaN', 3), ('Infinity', 4);
INSERT INTO bag VALUES ('a', 'a', '<a/>', 1), ('A', 'A', '<a/>', 1.0), ('A', 'a', '<a />', 1.00);
INSERT INTO bag VALUES ('a', 'a', '<a/>', 1);
"""
STEPS = [
    # The same key in other bytes, then changes that name the row by either; deleted by one and inserted by
    # the other; there and back; of rows that the source takes for equal but for their text, one goes.
    """
UPDATE icu SET k = 'A' WHERE k = 'a'; UPDATE ci SET k = 'A' WHERE k = 'a';
UPDATE numbers SET k = 1.00 WHERE k = 1; UPDATE numbers SET v = 10 WHERE k = 1;
UPDATE icu SET v = 'X' WHERE k = 'a'; UPDATE ci SET v = 'x', x = '<c>&lt;</c>' WHERE k = 'a';
DELETE FROM icu WHERE k = 'straße'; INSERT INTO icu VALUES ('STRAßE', 'y', 6);
DELETE FROM ci WHERE k = 'b'; INSERT INTO ci VALUES ('b', 'z', '<d/>', '{Q}');
DELETE FROM numbers WHERE k = 2.0; INSERT INTO numbers VALUES (2.000, 20);
UPDATE icu SET k = 'Z' WHERE k = 'z'; UPDATE icu SET k = 'z' WHERE k = 'Z';
UPDATE icu SET n = 5 WHERE k = 'Z';
DELETE FROM bag WHERE n::text = '1.0'; UPDATE bag SET c = 'Q' WHERE x::text = '<a />';
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag);
""",
    # The other one only after the lake has the first.
    """
DELETE FROM icu WHERE k = 'B'; UPDATE numbers SET k = 1.0000 WHERE k = 1; DELETE FROM ci WHERE k = 'ä';
DELETE FROM numbers WHERE k = 2; DELETE FROM icu WHERE k = 'a'; UPDATE ci SET k = 'a' WHERE k = 'A';
""",
]


@pytest.fixture
def source(database_on: Callable[[Any], Database]) -> Database:
    """A server with ICU, citext and libxml."""
    made = database_on(15)
    made.execute(SETUP)
    return made


def test_the_text_of_a_key_is_its_identity(source: Database, session: Any, tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, source, TABLES, extra="on_conflict: fail\n")
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        assert_equal(source, pipeline, TABLES)
        for changes in STEPS:
            source.execute(changes)
            pipeline.sync()
            assert_equal(source, pipeline, TABLES)
        assert pipeline.verify().equal
