"""Every type that has values in the tests: a copied row is the streamed row, bit for bit."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from psycopg import sql

from slotlake.decoder.slots.slot import create_slot
from tests.conftest import Database
from tests.decoder.binary_values import VALUES
from tests.decoder.sources import pulled, settings
from tests.decoder.test_binary_server import bits
from tests.decoder.test_copy import copied


def _fill(database: Database) -> None:
    columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(VALUES))
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns}); CREATE PUBLICATION p FOR TABLE t")


def _insert(database: Database) -> None:
    places = sql.SQL(", ").join(sql.SQL(f"%s::text::{kind}") for kind in VALUES)
    insert = sql.SQL("INSERT INTO t VALUES (%s, {})").format(places)
    with database.connect() as connection:
        for number, row in enumerate(zip_longest(*VALUES.values())):
            connection.execute(insert, (number, *row))


def test_a_copied_row_is_the_streamed_row(database: Database, tmp_path: Path) -> None:
    source = settings(database)
    _fill(database)
    with create_slot(source) as cut:
        start = cut.lsn
    _insert(database)
    table, files = copied(database, tmp_path / "copy")
    rows = pa.concat_tables([pq.read_table(file.path) for file in files], promote_options="default")
    rows = rows.sort_by("lake id")
    batch = pulled(source, tmp_path / "log", start)
    [relation] = [each for each in batch.relations if each.rows]
    changes = batch.relation_table(relation)
    assert changes.num_rows == rows.num_rows == max(map(len, VALUES.values()))
    changes = changes.sort_by(f"n{[column.name for column in relation.columns].index('id')}")
    for i, column in enumerate(relation.columns):
        name = f"lake {column.name}"
        typed, sent = rows[name].combine_chunks(), changes[f"n{i}"].combine_chunks()
        kind = column.name if column.name == "id" else list(VALUES)[int(column.name[1:])]
        assert bits(typed).equals(bits(sent.cast(typed.type))), kind
        exact = f"{name}__exact"
        ours = rows[exact].to_pylist() if exact in rows.column_names else [None] * rows.num_rows
        theirs = changes[f"xn{i}"].to_pylist() if f"xn{i}" in changes.column_names else [None] * rows.num_rows
        assert ours == theirs, kind
    assert table.columns[0].name == "id"
