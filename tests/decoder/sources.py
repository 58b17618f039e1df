"""A source under test: a database with a publication and a slot, and what its tables hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.lsn import parse_lsn
from slotlake.decoder.server.source import SourceSettings, connect
from slotlake.decoder.slots.slot import create_slot, inspect_slot
from slotlake.decoder.stream import bulk
from slotlake.decoder.stream.pull import pull
from slotlake.decoder.types.table import column_type, to_text
from tests.conftest import Database


def settings(database: Database, **more: Any) -> SourceSettings:
    """Settings for a publication "p" and a slot named after the database."""
    return SourceSettings(database.dsn, ("p",), f"slot_{database.name}", **more)


def slotted(database: Database, **more: Any) -> tuple[SourceSettings, int]:
    """Make the slot; the position it starts at."""
    source = settings(database, **more)
    with create_slot(source) as made:
        return source, made.lsn


def pulled(source: SourceSettings, directory: Path, start: int, **more: Any) -> Batch:
    return pull(source, "test", directory, start=start, **more)


def through_sql(monkeypatch: pytest.MonkeyPatch, window_bytes: int) -> None:
    """Read everything through SQL (`decoder.stream.bulk`), in windows of that size, however little comes."""
    monkeypatch.setattr(bulk, "BULK_MIN_BYTES", 0)
    monkeypatch.setattr(bulk, "WINDOW_BYTES", window_bytes)
    monkeypatch.setattr(bulk, "_NEARLY_EMPTY", 1 << 40)


def confirmed_flush(source: SourceSettings) -> int:
    with connect(source.dsn) as connection:
        state = inspect_slot(connection, source.slot)
    assert state is not None
    assert state.confirmed_flush_lsn is not None
    return state.confirmed_flush_lsn


def insert_position(database: Database) -> int:
    return parse_lsn(database.execute("SELECT pg_current_wal_insert_lsn()")[0][0])


def replayed(
    batches: list[Batch], rows: dict[Any, tuple[Any, ...]] | None = None, *, table: str | None = None
) -> dict[Any, tuple[Any, ...]]:
    """What one table with the key in its first column holds after these batches: key text → row texts."""
    held: dict[Any, tuple[Any, ...]] = dict(rows or {})
    for batch in batches:
        for change in sorted(_changes(batch, table), key=lambda each: each["seq"]):
            _apply(held, change)
    return held


def _changes(batch: Batch, of: str | None) -> list[dict[str, Any]]:
    changes: list[dict[str, Any]] = []
    for relation in (each for each in batch.relations if of in (None, each.table)):
        table = batch.relation_table(relation)
        columns = {"seq": table["seq"].to_pylist(), "op": table["op"].to_pylist()}
        for side in "no":
            for i, column in enumerate(relation.columns):
                name = f"{side}{i}"
                if name in table.column_names:
                    exact = table[f"x{name}"] if f"x{name}" in table.column_names else None
                    kind = column_type(column.type_oid, column.typmod)
                    columns[name] = to_text(table[name], exact, kind).to_pylist()
        for i in range(len(relation.columns)):
            if f"u{i}" in table.column_names:
                columns[f"u{i}"] = table[f"u{i}"].to_pylist()
        width = len(relation.columns)
        rows = zip(*columns.values(), strict=True)
        changes += [{"width": width, **dict(zip(columns, values, strict=True))} for values in rows]
    return changes


def _apply(held: dict[Any, tuple[Any, ...]], change: dict[str, Any]) -> None:
    operation = chr(change["op"])
    if operation == "T":
        held.clear()
        return
    old_key = change.get("o0") if change.get("o0") is not None else change.get("n0")
    before = held.pop(old_key, None) if operation in "UD" else None
    if operation in "IU":
        held[change["n0"]] = tuple(
            before[i] if before is not None and change.get(f"u{i}") else change.get(f"n{i}")
            for i in range(change["width"])
        )


def held_by(database: Database, table: str, columns: str) -> dict[Any, tuple[Any, ...]]:
    """The same of the live table."""
    with connect(database.dsn) as connection:
        rows = connection.execute(f"SELECT {columns} FROM {table}").fetchall()
    return {row[0]: tuple(row) for row in rows}
