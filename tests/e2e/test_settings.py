"""A source whose settings, for its database and its role, are against us: the lake is equal all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from tests.conftest import Database
from tests.decoder.servers.test_settings import make_hostile
from tests.e2e.oracle import pipeline_file

pytestmark = [pytest.mark.timeout(300), pytest.mark.server]


def test_settings_of_role_and_database(database: Database, session: Any, tmp_path: Path) -> None:
    database.execute(
        """CREATE TABLE t (id int PRIMARY KEY, at timestamptz, took interval, paid money, f float8, raw bytea,
               of regclass, said text);
           CREATE TABLE bag (of regclass, paid money, f float8); ALTER TABLE bag REPLICA IDENTITY FULL;
           INSERT INTO t SELECT g, '2026-02-03 04:05:06.7+09', '1 day 2 s', 1234.5, 0.1::float8 + 0.2,
               '\\xdeadbeef', 't', E'back\\\\slash ü' FROM generate_series(1, 3) g;
           INSERT INTO bag SELECT of, paid, f FROM t;
           CREATE SCHEMA hidden; CREATE TABLE hidden.pg_class (oid oid); CREATE TABLE hidden.t (x int)"""
    )
    # What another session prints, which none of it is set for.
    plain = "SET search_path = public; SET lc_monetary = 'C'; SET default_transaction_read_only = off; "
    plain += "SET transaction_timeout = 0; SET statement_timeout = 0; SET session_replication_role = origin; "
    file = pipeline_file(tmp_path, database, ["t", "bag"])
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        before = list(pipeline.rows("t"))
        make_hostile(database)
        database.execute(
            f"{plain}; BEGIN READ WRITE; UPDATE t SET said = said || '!';"
            "INSERT INTO t SELECT id + 10, at, took, paid, f, raw, of, said FROM t;"
            "DELETE FROM bag WHERE ctid = '(0,1)'; UPDATE bag SET f = f + 1; COMMIT"
        )
        pipeline.sync()
        assert pipeline.verify().equal
        after = list(pipeline.rows("t", columns=["at", "took", "paid", "f", "raw", "of"]))
        assert len(after) == 6
        assert set(after) == {row[1:7] for row in before}
        assert len(list(pipeline.rows("bag"))) == 2
        pipeline.backfill("t", where="said LIKE '%!'")
        assert pipeline.verify().equal
