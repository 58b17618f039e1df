"""What the fold relies on: a server names the old row byte for byte whenever its key's bytes change."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from slotlake.decoder.protocol.messages import Update
from slotlake.decoder.protocol.reader import read_message

CASES = {
    "numeric's scale": ("numeric", "1.0", "1.00"),
    "float's zeros": ("float8", "-0", "0"),
    "bpchar's blanks": ("bpchar", "x", "x "),
    "an interval's units": ("interval", "1 day", "24:00:00"),
    "jsonb's numbers": ("jsonb", "1.0", "1.00"),
}


@pytest.mark.parametrize("case", CASES, ids=list(CASES))
def test_a_key_equal_to_the_old_one_in_other_bytes_is_sent_as_a_key_change(database: Any, case: str) -> None:
    kind, before, after = CASES[case]
    database.execute(f"CREATE TABLE t (k {kind} PRIMARY KEY, n int); CREATE PUBLICATION p FOR TABLE t")
    database.execute("SELECT pg_create_logical_replication_slot('fold_identity', 'pgoutput')")
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(f"INSERT INTO t VALUES ('{before}', 1)")
        connection.execute("UPDATE t SET n = 2")
        connection.execute(f"UPDATE t SET k = '{after}' WHERE k = '{after}'")
        sent = connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes("
            "'fold_identity', NULL, NULL, 'proto_version', '1', 'publication_names', 'p')"
        ).fetchall()
    updates = [m for m in (read_message(bytes(data)) for (data,) in sent) if isinstance(m, Update)]
    assert [update.old_kind for update in updates] == ["", "K"]
