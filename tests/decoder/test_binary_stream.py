# ruff: noqa: E501
"""One table with a column of every type, streamed as text and as binary: the same Arrow tables."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa

from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.columnar.decoder import Decoder
from slotlake.decoder.types.binary.values import withheld_from_binary
from slotlake.decoder.types.catalog import load_types
from tests.conftest import Database
from tests.decoder.binary_values import VALUES
from tests.decoder.test_binary_server import OPTIONS, USER_TYPES, assert_same

USER_COLUMNS = {
    "tb.mood": "'ok \"then\"'", "tb.elder": "7", "tb.moods": "'{sad,NULL}'", "tb.inner": "ROW(7, 'sad', 'q\"u\\')",
    "tb.outer[]": "ARRAY[ROW(NULL, '{}', 3, 'infinity', 'NaN')::tb.outer]", "tb.agerange": "'[1,5]'",
    "tb.corner[]": "'{(1,2),(3,4);NULL}'", "text[]": "'[2:3]={\"a b\",NULL}'", "timestamptz[]": "'{infinity}'",
    "aclitem": "'=r/slotlake'",
}  # fmt: skip


def test_a_column_of_every_type_in_text_and_in_binary(database: Database) -> None:
    with psycopg.connect(database.dsn, autocommit=True, options=OPTIONS) as connection:
        connection.execute(f"CREATE SCHEMA tb; {USER_TYPES}")
        columns = [f"c{i} {name}" for i, name in enumerate([*VALUES, *USER_COLUMNS])]
        connection.execute(f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(columns)})")
        connection.execute("ALTER TABLE t REPLICA IDENTITY FULL; CREATE PUBLICATION p FOR TABLE t")
        connection.execute("SELECT pg_create_logical_replication_slot('every_type', 'pgoutput')")
        for row in range(max(map(len, VALUES.values()))):
            texts = [
                psycopg.sql.Literal(texts[row % len(texts)]).as_string(connection)
                for texts in VALUES.values()
            ]
            users = [f"({value})::{name}" for name, value in USER_COLUMNS.items()]
            connection.execute(f"INSERT INTO t VALUES ({row}, {', '.join(texts + users)})".encode())
        connection.execute("INSERT INTO t VALUES (-1); UPDATE t SET id = -2 WHERE id = -1; DELETE FROM t")
        catalog = load_types(connection)
        kinds = [
            row[0]
            for row in connection.execute(
                "SELECT atttypid::bigint FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0"
            )
        ]
        assert [withheld_from_binary(oid, catalog) for oid in kinds] == [""] * len(kinds)
        text = decoded(connection, Decoder(), "false")
        binary = decoded(connection, Decoder(binary=True, catalog=catalog), "true")
    assert text.num_rows > 50
    assert binary.column_names == text.column_names
    for name in text.column_names:
        if name != "lsn":
            assert_same((binary[name].combine_chunks(), None), (text[name].combine_chunks(), None))


def decoded(connection: psycopg.Connection[Any], decoder: Decoder, binary: str) -> pa.Table:
    buffer = MessageBuffer()
    for (payload,) in connection.execute(
        "SELECT data FROM pg_logical_slot_peek_binary_changes('every_type', NULL, NULL, 'proto_version', '1', "
        "'publication_names', 'p', 'binary', %s)",
        [binary],
    ):
        buffer.append(payload, 1)
    (table,) = decoder.decode(buffer, first_seq=0, first_txn=0).rows.values()
    return table
