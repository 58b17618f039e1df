"""Capture the golden vectors anew: ``python -m tests.vectors.capture [CASE...]``.

For each case and server version: a fresh database, the statements before ``-- capture``, a slot, the
statements after it, then everything the slot sends.  Review the differences before you keep them:
positions, xids, OIDs and times change with every capture, nothing else should.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg import sql

from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.decoder.protocol.messages import BinaryValue, Message, NoValue, Streamed
from slotlake.decoder.protocol.reader import StreamReader
from slotlake.decoder.protocol.relations import Column, Relation
from slotlake.decoder.types.table import sql_text
from slotlake.infra.local.postgres import EmbeddedPostgres, temporary_postgres
from tests.vectors.stream import OPTIONS, receive

FOLDER = Path(__file__).parent
VERSIONS: tuple[Literal[16, 18], ...] = (18, 16)
UNCHANGED = {"unchanged": True}


def main(wanted: list[str]) -> None:
    """Capture the named cases, or all."""
    for version in VERSIONS:
        with temporary_postgres(version=version) as server:
            for path in sorted((FOLDER / "cases").glob("*.sql")):
                only = path.stem.partition("_pg")[2]
                if (not wanted or path.stem in wanted) and (not only or int(only) <= version):
                    capture(server, path)
                    print(f"pg{version}/{path.stem}")


def capture(server: EmbeddedPostgres, path: Path) -> None:
    """Run one case on this server and write its two files."""
    name = path.stem
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(name)))
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    setup, _, captured = path.read_text().partition("-- capture\n")
    _psql(server, name, setup)
    with psycopg.connect(server.dsn(name), autocommit=True, options=OPTIONS) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('vector', 'pgoutput')")
        _psql(server, name, captured)
        (until,) = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("",)
        publications = [p for (p,) in connection.execute("SELECT pubname FROM pg_publication ORDER BY 1")]
        stream = receive(server.dsn(name), "vector", publications, parse_lsn(until), messages="true")
        tables = published(connection, publications)
        connection.execute("SELECT pg_drop_replication_slot('vector')")
    _write(FOLDER / f"pg{server.version}" / name, stream, tables)


def published(connection: psycopg.Connection[Any], publications: list[str]) -> dict[str, Any]:
    """The published part of each table as the server prints it."""
    found = {}
    query = (
        "SELECT DISTINCT schemaname, tablename, attnames::text[], rowfilter "
        "FROM pg_publication_tables WHERE pubname = ANY(%s)"
    )
    for schema, table, names, row_filter in connection.execute(query, [publications]).fetchall():
        identifier = sql.Identifier(schema, table).as_string()
        oids = dict(
            connection.execute(
                "SELECT attname, atttypid FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0",
                [identifier],
            ).fetchall()
        )
        texts = ", ".join(sql_text(sql.Identifier(n).as_string(), oids[n]) for n in names or [])
        rows = connection.execute(f"SELECT {texts} FROM {identifier} WHERE {row_filter or 'true'}").fetchall()
        found[f"{schema}.{table}"] = {"columns": names or [], "rows": sorted(map(list, rows), key=str)}
    return dict(sorted(found.items()))


def as_json(value: Any) -> Any:  # noqa: PLR0911 - one kind of value a line
    """Messages and their parts as JSON."""
    if value is NoValue.NULL:
        return None
    if value is NoValue.UNCHANGED:
        return UNCHANGED
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, BinaryValue):
        return {"binary": value.data.hex()}
    if isinstance(value, Streamed):
        return {**as_json(value.message), "streamed_by": value.xid}
    if isinstance(value, tuple):
        return [as_json(item) for item in value]
    if isinstance(value, Message | Relation | Column):
        parts = {f.name: as_json(getattr(value, f.name)) for f in fields(value)}
        parts = {n: format_lsn(v) if n.endswith("lsn") and v is not None else v for n, v in parts.items()}
        return {"message": type(value).__name__, **parts} if isinstance(value, Message) else parts
    return value


def _write(path: Path, stream: list[tuple[int, bytes]], tables: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    reader = StreamReader()
    messages = [as_json(reader.read(payload)) for _, payload in stream]
    path.with_suffix(".hex").write_text("".join(f"{format_lsn(lsn)} {p.hex()}\n" for lsn, p in stream))
    lines = ",\n  ".join(json.dumps(m, ensure_ascii=False) for m in messages)
    path.with_suffix(".json").write_text(f'{{"messages": [\n  {lines}\n],\n"tables": {_tables(tables)}}}\n')


def _tables(tables: dict[str, Any]) -> str:
    """One line a row."""
    parts = []
    for name, table in tables.items():
        rows = ",\n    ".join(json.dumps(row, ensure_ascii=False) for row in table["rows"])
        columns = json.dumps(table["columns"], ensure_ascii=False)
        parts.append(
            f'  {json.dumps(name, ensure_ascii=False)}: {{"columns": {columns}, "rows": [\n    {rows}]}}'
        )
    return "{\n" + ",\n".join(parts) + "}"


def _psql(server: EmbeddedPostgres, database: str, statements: str) -> None:
    subprocess.run(
        [server.program("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-"],
        input=statements,
        env=server.client_environment(database),
        stdout=subprocess.DEVNULL,
        text=True,
        check=True,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
