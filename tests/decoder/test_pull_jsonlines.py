"""`slotlake decode`'s records: readable, complete, and nothing is confirmed by looking."""

from __future__ import annotations

import json

from slotlake.decoder.plugins.jsonlines import changes
from tests.conftest import Database
from tests.decoder.sources import confirmed_flush, slotted


def test_records(database: Database) -> None:
    database.execute(
        """
        CREATE TABLE t (id int PRIMARY KEY, a text, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
        CREATE TABLE f (id int, a text); ALTER TABLE f REPLICA IDENTITY FULL;
        CREATE PUBLICATION p FOR TABLE t, f
        """
    )
    source, start = slotted(database, messages=True)
    database.execute("INSERT INTO t VALUES (1, NULL, repeat('x', 5000))")
    database.execute("UPDATE t SET id = 2, a = 'é'")
    database.execute("DELETE FROM t")
    database.execute("INSERT INTO f VALUES (1, NULL)")
    database.execute("UPDATE f SET a = 'b'")
    database.execute("TRUNCATE t, f")
    database.execute("SELECT pg_logical_emit_message(false, 'pre', 'text')")
    database.execute(r"SELECT pg_logical_emit_message(true, 'pre', '\xff'::bytea)")
    records = list(changes(source))
    assert json.loads(json.dumps(records)) == records
    assert [(r["kind"], r.get("table")) for r in records] == [
        ("insert", "t"), ("update", "t"), ("delete", "t"), ("insert", "f"), ("update", "f"),
        ("truncate", "t"), ("truncate", "f"), ("message", None), ("message", None),
    ]  # fmt: skip
    update = records[1]
    assert (update["old"], update["new"], update["unchanged"]) == (
        {"id": "1"},
        {"id": "2", "a": "é"},
        ["big"],
    )
    assert records[2]["old"] == {"id": "2"}
    assert records[4]["old"] == {"id": "1", "a": None}
    assert (records[7]["xid"], records[7]["content"], records[8]["content"]) == (None, "text", "\\xff")
    assert records[8]["xid"] is not None
    assert records[0]["commit_time"].endswith("+00:00")
    assert confirmed_flush(source) == start
    assert list(changes(source)) == records, "looking again shows the same"
