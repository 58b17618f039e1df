"""A slot that is read live while sessions work, so that the server streams what may still be undone."""

from __future__ import annotations

import contextlib
import select
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from psycopg import pq

from slotlake.decoder.lsn import parse_lsn
from tests.conftest import Database
from tests.vectors.stream import OPTIONS

SMALL = "-c logical_decoding_work_mem=64kB"
IMMEDIATE = f"{SMALL} -c debug_logical_replication_streaming=immediate"
# What is asked of the server, by name: all see the same history and must come to the same.
VARIANTS: dict[str, dict[str, str]] = {
    "1": {"proto_version": "1"},
    "2-streaming": {"proto_version": "2", "streaming": "on"},
    "4-parallel": {"proto_version": "4", "streaming": "parallel"},
    "3-two-phase": {"proto_version": "3", "two_phase": "true"},
    "4-parallel-two-phase": {"proto_version": "4", "streaming": "parallel", "two_phase": "true"},
    "4-binary": {"proto_version": "4", "streaming": "on", "two_phase": "true", "binary": "true"},
}


def meaning_of(options: Mapping[str, str]) -> dict[str, Any]:
    """The reader's settings for these options."""
    return {
        "streaming": options.get("streaming", "off"),
        "two_phase": "two_phase" in options,
        "binary": "binary" in options,
    }


class LiveSlot:
    """One slot and the walsender that reads it.

    Attributes:
        stream: (WAL position, message), all that came so far.
    """

    def __init__(self, database: Database, name: str, options: Mapping[str, str], server: str = "") -> None:
        self.options, self.slot = options, name
        self.stream: list[tuple[int, bytes]] = []
        database.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)",
            [name, "two_phase" in options],
        )
        settings = {"publication_names": '"p"', "messages": "true", **options}
        quoted = ", ".join(f"{key} '{value}'" for key, value in settings.items())
        self.connection = psycopg.connect(
            database.dsn, autocommit=True, replication="database", options=f"{OPTIONS} {server}"
        )
        command = f"START_REPLICATION SLOT {name} LOGICAL 0/0 ({quoted})"
        result = self.connection.pgconn.exec_(command.encode())
        assert result.status == pq.ExecStatus.COPY_BOTH, result.get_error_message()

    def catch_up(self, until: int) -> None:
        """Read until everything before ``until`` was decoded."""
        while True:
            length, message = self.connection.pgconn.get_copy_data(1)
            assert length >= 0, self.connection.pgconn.get_error_message()
            if length == 0:
                self._wait()
                continue
            data = bytes(message)
            if data[:1] == b"w":
                self.stream.append((struct.unpack(">Q", data[1:9])[0], data[25:]))
            else:
                position, _, wanted = struct.unpack(">QqB", data[1:18])
                if wanted:
                    self._reply(ask=False)
                if position >= until:
                    return

    def _wait(self) -> None:
        """Wait for more; a server that has nothing more to say is asked how far it is."""
        if select.select([self.connection.pgconn.socket], [], [], 0.05)[0]:
            self.connection.pgconn.consume_input()
        else:
            self._reply(ask=True)

    def _reply(self, *, ask: bool) -> None:
        """Say that we live, without confirming anything."""
        self.connection.pgconn.put_copy_data(b"r" + struct.pack(">QQQqB", 1, 1, 1, 0, ask))
        self.connection.pgconn.flush()


@contextlib.contextmanager
def live_slots(
    database: Database, variants: Mapping[str, Mapping[str, str]], server: str = IMMEDIATE
) -> Iterator[dict[str, LiveSlot]]:
    """A live slot for each variant, on the database's publication ``p``."""
    with contextlib.ExitStack() as stack:
        slots = {}
        for number, (name, options) in enumerate(variants.items()):
            slots[name] = LiveSlot(database, f"live_{number}_{database.name}", options, server)
            stack.callback(slots[name].connection.close)
        yield slots


class History:
    """Sessions of one database, whose statements run one by one.

    After each of them every slot has seen what it logged.
    """

    def __init__(self, database: Database, slots: Mapping[str, LiveSlot]) -> None:
        self._database, self._slots = database, slots
        self._sessions: dict[str, psycopg.Connection[Any]] = {}
        self._admin = database.connect()

    def run(self, session: str, statement: str) -> None:
        """Run a statement in a session and let every slot see what it logged."""
        self._session(session).execute(statement)
        (text,) = self._admin.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("",)
        # A commit that waits for the disk takes along what others have logged.
        self._admin.execute("INSERT INTO hidden.flush VALUES (1)")
        for slot in self._slots.values():
            slot.catch_up(parse_lsn(text))

    def _session(self, name: str) -> psycopg.Connection[Any]:
        if name not in self._sessions:
            self._sessions[name] = self._database.connect(options="-c lock_timeout=5s")
        return self._sessions[name]

    def run_all(self, statements: str) -> None:
        """Run a table's lines: a session's name, then its statement."""
        for line in statements.strip().splitlines():
            session, _, statement = line.strip().partition(" ")
            self.run(session, statement)

    def close(self) -> None:
        """End all sessions."""
        for session in [*self._sessions.values(), self._admin]:
            session.close()
