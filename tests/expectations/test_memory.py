"""Memory stays within a bound when millions of rows differ (measured in a process of its own)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psycopg
import pytest

from slotlake.expectations.differences import ROWS_AT_ONCE
from tests.conftest import Database

ROWS = 3_000_000 if os.environ.get("SLOTLAKE_TEST_LONG") else 200_000
# So many rows of both sides are looked at together; and what is listed.  Measured: 86 bytes a row over one
# connection, 103 over three.
MIB_MAX = 60 + min(2 * ROWS, ROWS_AT_ONCE) * 120 / 2**20
PROGRAM = """
import json, resource, sys
from dataclasses import dataclass
import numpy as np, psycopg, pyarrow as pa
from slotlake.decoder.catalog.publications import source_tables
from slotlake.expectations.reconcile import Manner, reconcile
from tests.expectations.test_reconcile import Column, Table

dsn, snapshot, rows, connections = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


class Lake:
    def tables(self):
        return [Table("public", "t", [Column("id"), Column("v")], [])]

    def text_batches(self, table, columns=None):
        for start in range(1, self.rows + 1, 65536):
            ids = pa.array(np.arange(start, min(start + 65536, self.rows + 1))).cast(pa.string())
            yield pa.RecordBatch.from_arrays([ids, pa.array([self.value] * len(ids))], ["id", "v"])


def compared(value):
    lake = Lake()
    lake.rows, lake.value = rows, value
    with psycopg.connect(dsn) as connection:
        tables = source_tables(connection, ["p"])
    manner = Manner(connections=connections)
    return reconcile(dsn, snapshot, tables, lake, lsn=1, manner=manner).tables["public.t"]


assert compared("same").equal
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = compared("another")
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"totals": result.totals, "listed": len(result.differences),
                  "equal_mib": before / 1024, "different_mib": after / 1024}))
"""


@pytest.mark.server
@pytest.mark.parametrize("connections", [1, 3])
def test_all_rows_differ(connections: int, database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t;"
        f"INSERT INTO t SELECT g, 'same' FROM generate_series(1, {ROWS}) g"
    )
    with psycopg.connect(database.dsn) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        (snapshot,) = connection.execute("SELECT pg_export_snapshot()").fetchone() or ("",)
        command = [sys.executable, "-c", PROGRAM, database.dsn, snapshot, str(ROWS), str(connections)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, timeout=500)
    told = json.loads(done.stdout)
    assert (told["totals"], told["listed"]) == ({"different": ROWS}, 1000)
    print(f"{ROWS:,} rows, {connections} connections: {told}")
    assert told["different_mib"] - told["equal_mib"] < MIB_MAX
