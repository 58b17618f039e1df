"""Random sessions: statements that never wait for each other, whatever was rolled back or prepared.

Each session keeps to rows of its own; a table that a transaction changes the shape of is its alone until it
ends, also while it is prepared.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

Statement = tuple[str, str]
TABLES = ("t0", "t1", "t2")
SESSIONS = ("a", "b", "c", "d")


@dataclass
class _Session:
    name: str
    open: bool = False
    savepoints: list[str] = field(default_factory=list)
    holds: dict[str, bool] = field(default_factory=dict)  # table → exclusively


class _World:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.sessions = {name: _Session(name) for name in SESSIONS}
        self.prepared: dict[str, _Session] = {}
        self.next_id = 0

    def may(self, session: _Session, table: str, *, exclusively: bool) -> bool:
        """No one else stands in the way."""
        others = [s for s in [*self.sessions.values(), *self.prepared.values()] if s is not session]
        holds = [s.holds[table] for s in others if table in s.holds]
        return not holds if exclusively else not any(holds)

    def step(self, session: _Session) -> str | None:
        """The session's next statement."""
        if not session.open:
            return self._between(session)
        ends = self.draw.random()
        if ends < 0.10:
            return self._end(session)
        if ends < 0.30:
            return self._savepoint(session)
        return self._change(session)

    def _between(self, session: _Session) -> str | None:
        resolved = [gid for gid, owner in self.prepared.items() if owner.name == session.name]
        choice = self.draw.random()
        if resolved and choice < 0.4:
            gid = self.draw.choice(resolved)
            del self.prepared[gid]
            return f"{self.draw.choice(['COMMIT', 'ROLLBACK'])} PREPARED '{gid}'"
        if choice < 0.8:
            session.open, session.savepoints = True, []
            return "BEGIN"
        statement = self._change(session)
        session.holds.clear()
        return statement

    def _end(self, session: _Session) -> str:
        session.open = False
        how = self.draw.choice(["COMMIT", "COMMIT", "ROLLBACK", "PREPARE"])
        if how == "PREPARE":
            self.next_id += 1
            gid = f"{session.name} {self.next_id}"
            self.prepared[gid] = _Session(session.name, holds=dict(session.holds))
            how = f"PREPARE TRANSACTION '{gid}'"
        session.holds.clear()
        return how

    def _savepoint(self, session: _Session) -> str:
        if not session.savepoints or self.draw.random() < 0.4:
            self.next_id += 1
            session.savepoints.append(f"s{self.next_id}")
            return f"SAVEPOINT s{self.next_id}"
        at = self.draw.randrange(len(session.savepoints))
        name = session.savepoints[at]
        if self.draw.random() < 0.6:
            session.savepoints = session.savepoints[: at + 1]
            return f"ROLLBACK TO {name}"
        session.savepoints = session.savepoints[:at]
        return f"RELEASE {name}"

    def _change(self, session: _Session) -> str | None:
        kind = self.draw.random()
        if kind < 0.06:
            transactional = self.draw.choice(["true", "false"])
            return f"SELECT pg_logical_emit_message({transactional}, 'p', '{self.draw.random()}')"
        table = self.draw.choice(TABLES)
        exclusively = kind < 0.22
        if not self.may(session, table, exclusively=exclusively):
            return None
        session.holds[table] = session.holds.get(table, False) or exclusively
        if exclusively:
            return self._shape(table)
        return self._row(session, table, kind)

    def _row(self, session: _Session, table: str, kind: float) -> str:
        self.next_id += 1
        row = 10 * self.next_id + SESSIONS.index(session.name)
        held = any(table in s.holds for s in self.prepared.values() if s.name == session.name)
        mine = f"id % 10 = {SESSIONS.index(session.name)}"
        if kind < 0.75 or held:
            length = self.draw.choice([1, 10, 3000])
            note = f"repeat('{self.draw.randrange(10)}', {length})"
            return f"INSERT INTO {table} (id, note) VALUES ({row}, {note})"
        if kind < 0.88:
            change = self.draw.choice([f"note = 'changed {row}'", f"id = id + {10 * self.next_id * 1000}"])
            return f"UPDATE {table} SET {change} WHERE {mine}"
        return f"DELETE FROM {table} WHERE {mine}"

    def _shape(self, table: str) -> str:
        self.next_id += 1
        return self.draw.choice(
            [
                f"ALTER TABLE {table} ADD COLUMN c{self.next_id} int DEFAULT {self.next_id}",
                f"ALTER TABLE {table} ADD COLUMN c{self.next_id} mood",
                f"ALTER TABLE {table} REPLICA IDENTITY {self.draw.choice(['FULL', 'DEFAULT'])}",
                f"TRUNCATE {table} RESTART IDENTITY",
            ]
        )


def random_history(draw: random.Random, steps: int) -> Iterator[Statement]:
    """So many statements of several sessions."""
    world = _World(draw)
    made = 0
    while made < steps:
        session = world.sessions[draw.choice(SESSIONS)]
        statement = world.step(session)
        if statement is not None:
            made += 1
            yield session.name, statement
