# ruff: noqa: E501  (a table, or a statement, is read as a line)
"""Draws what is done to the tables: transactions of statements, all of them from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import psycopg

from tests.roads.kinds import ALL, Kind

Transaction = Sequence[str]
ROWS_FIRST = 14
_PER_TABLE = 3
EMPTIED = "emptied"
# What happens to columns of tables that shift: a transaction of its own, with a row that changes after it.
_COLUMNS = (
    "ADD c int", "ADD d text DEFAULT 'old'", "ADD c text DEFAULT md5(random()::text)", "DROP c", "DROP d",
    "RENAME c TO d", "RENAME d TO c", "ALTER c TYPE text USING 'x' || c", "ALTER n TYPE numeric(9,2)",
    "ALTER n TYPE numeric(38,2)", "ALTER k TYPE bigint", "ADD e numeric(38,0) DEFAULT 1e37", "DROP e",
)  # fmt: skip


def literal(value: str | None) -> str:
    """A value's text as an SQL literal."""
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


def first_rows(kind: Kind, chance: random.Random) -> list[str]:
    """Statements that fill a table, with most of the values at limits."""
    return [_insert(kind, chance) for _ in range(ROWS_FIRST)]


def transactions(chance: random.Random, tables: Sequence[str]) -> Iterator[Transaction]:
    """What a source does between two syncs: each of the tables is written to."""
    groups = [group for name in tables for group in _statements(ALL[name], chance)]
    chance.shuffle(groups)
    prepared: list[str] = []
    while groups:
        taken = [groups.pop() for _ in range(min(len(groups), chance.randint(1, 9)))]
        some = [statement for group in taken for statement in group]
        if prepared and chance.random() < 0.5:
            yield [prepared.pop()]
        if chance.random() < 0.15:
            yield ["SAVEPOINT s", *some, "ROLLBACK TO SAVEPOINT s"]
        elif not prepared and chance.random() < 0.1:
            name = f"'road {chance.getrandbits(40)}'"
            prepared.append(f"{'COMMIT' if chance.random() < 0.7 else 'ROLLBACK'} PREPARED {name}")
            yield [*_without_truncate(some), f"PREPARE TRANSACTION {name}"]
        elif chance.random() < 0.15:
            yield ["SAVEPOINT s", *some[:2], "RELEASE SAVEPOINT s", *some[2:]]
        else:
            yield some
    yield from ([each] for each in prepared)
    if EMPTIED in tables:
        kind = ALL[EMPTIED]
        rows = [_insert(kind, chance) for _ in range(8)]
        yield [*rows[:4], f"TRUNCATE {EMPTIED}", *rows[4:], *_updated(kind, chance)]
    for kind in (ALL[name] for name in tables if ALL[name].shifts):
        for change in chance.sample(_COLUMNS, 3):
            yield [
                f"ALTER TABLE {kind.name} {change}",
                _insert(kind, chance),
                f"UPDATE {kind.name} SET n = -n",
            ]


def _without_truncate(statements: Sequence[str]) -> list[str]:
    """A server cannot decode a prepared TRUNCATE that is rolled back and vacuumed; docs/servers.md names it."""
    return [each for each in statements if not each.startswith("TRUNCATE")]


def run(connection: psycopg.Connection[Any], transaction: Transaction) -> None:
    """Run a transaction; a statement that cannot be done is left out of it (a prepared one has locks)."""
    connection.execute("SET lock_timeout = '100ms'")
    if transaction[0].startswith(("COMMIT", "ROLLBACK PREPARED")):
        connection.execute(transaction[0].encode())
        return
    connection.execute("BEGIN")
    for statement in transaction:
        if "SAVEPOINT" in statement or statement.startswith("PREPARE"):
            connection.execute(statement.encode())
            continue
        with suppress(psycopg.Error), connection.transaction():
            connection.execute(statement.encode())
    if not transaction[-1].startswith("PREPARE"):
        connection.execute("COMMIT")


def _statements(kind: Kind, chance: random.Random) -> list[list[str]]:
    """Groups of statements that stay together."""
    count = 1 if chance.random() < 0.5 else chance.randint(1, 2 * _PER_TABLE)
    if kind.insert_only:
        return [[_insert(kind, chance)] for _ in range(count)]
    makers = [maker for weight, maker in _MAKERS for _ in range(weight)]
    return [chance.choice(makers)(kind, chance) for _ in range(count)]


def _insert(kind: Kind, chance: random.Random) -> str:
    row = kind.row(chance)
    return (
        f"INSERT INTO {kind.name} ({', '.join(row)}) VALUES ({', '.join(map(literal, row.values()))})"
        " ON CONFLICT DO NOTHING"
    )


def _key(kind: Kind, chance: random.Random) -> dict[str, str]:
    return {name: draw(chance) for name, (_, draw) in kind.key.items()}


def _where(key: dict[str, str]) -> str:
    return " AND ".join(f"{name} = {literal(value)}" for name, value in key.items())


def _set(values: dict[str, str] | dict[str, str | None]) -> str:
    return ", ".join(f"{name} = {literal(value)}" for name, value in values.items())


def _payload(kind: Kind, chance: random.Random) -> dict[str, str | None]:
    row = kind.row(chance)
    names = [name for name in row if name not in kind.key]
    return {name: row[name] for name in chance.sample(names, chance.randint(1, min(2, len(names))))}


def _updated(kind: Kind, chance: random.Random) -> list[str]:
    """One row by its key, or the first of some, so that rows are really met."""
    name = next(iter(kind.key))
    if chance.random() < 0.5:
        where = _where(_key(kind, chance))
    else:
        order = "DESC" if chance.random() < 0.5 else "ASC"
        where = f"(tableoid, ctid) IN (SELECT tableoid, ctid FROM {kind.name} ORDER BY {name} {order}, ctid LIMIT 2)"
    return [f"UPDATE {kind.name} SET {_set(_payload(kind, chance))} WHERE {where}"]


def _moved(kind: Kind, chance: random.Random) -> list[str]:
    old, new = _key(kind, chance), _key(kind, chance)
    more = _payload(kind, chance) if chance.random() < 0.5 else {}
    return [f"UPDATE {kind.name} SET {_set({**new, **more})} WHERE {_where(old)}"]


def _swapped(kind: Kind, chance: random.Random) -> list[str]:
    """Two rows change their keys by way of a third key."""
    one, two, spare = (_key(kind, chance) for _ in range(3))
    return [
        f"UPDATE {kind.name} SET {_set(new)} WHERE {_where(old)}"
        for old, new in ((one, spare), (two, one), (spare, two))
    ]


def _deleted(kind: Kind, chance: random.Random) -> list[str]:
    return [f"DELETE FROM {kind.name} WHERE {_where(_key(kind, chance))}"]


def _replaced(kind: Kind, chance: random.Random) -> list[str]:
    key = _key(kind, chance)
    row = {**kind.row(chance), **key}
    inserted = f"INSERT INTO {kind.name} ({', '.join(row)}) VALUES ({', '.join(map(literal, row.values()))})"
    return [f"DELETE FROM {kind.name} WHERE {_where(key)}", f"{inserted} ON CONFLICT DO NOTHING"]


def _all(kind: Kind, chance: random.Random) -> list[str]:
    return [f"UPDATE {kind.name} SET v = {literal(kind.columns['v'][1](chance))}"]


def _truncated(kind: Kind, chance: random.Random) -> list[str]:
    rows = [_insert(kind, chance) for _ in range(4)]
    return [*rows[:2], f"TRUNCATE {kind.name}", *rows[2:]] if chance.random() < 0.3 else rows


def _inserted(kind: Kind, chance: random.Random) -> list[str]:
    return [_insert(kind, chance)]


_Maker = Callable[[Kind, random.Random], list[str]]
_MAKERS: Sequence[tuple[int, _Maker]] = (
    (4, _inserted), (4, _updated), (3, _moved), (1, _swapped), (2, _deleted), (2, _replaced), (1, _all), (1, _truncated)
)  # fmt: skip
