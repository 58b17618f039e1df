"""Sessions at the source that one piece of work leaves to the next, within a block and a thread.

A micro-batch asks the source nine times.  A new session each time costs both sides some 15 ms, which is a
quarter of a small batch.  Invariant: no session outlives its block, so a batch never trusts a session that
was opened before it; and one that failed, or is within a transaction, is not used again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.pq import TransactionStatus

from slotlake.decoder.server.waiting import WatchedConnection

Kind = tuple[str, bool]


class _Idle(threading.local):
    """The sessions that wait for work, by connection string and whether they take replication commands."""

    sessions: dict[Kind, WatchedConnection] | None = None


_idle = _Idle()


@contextmanager
def sessions_go_on() -> Iterator[None]:
    """Within the block, this thread uses its sessions again; they end with the block."""
    if _idle.sessions is not None:
        yield
        return
    _idle.sessions = {}
    try:
        yield
    finally:
        sessions, _idle.sessions = _idle.sessions, None
        for session in sessions.values():
            session.close()


def taken_up(kind: Kind) -> WatchedConnection | None:
    """Return a session that waits for work, if there is one."""
    session = None if _idle.sessions is None else _idle.sessions.pop(kind, None)
    return None if session is None or session.closed else session


def left(kind: Kind, session: WatchedConnection) -> bool:
    """Leave a session to later work; return False if it must be closed."""
    if _idle.sessions is None or kind in _idle.sessions or session.closed:
        return False
    plain = session.info.parameter_status("client_encoding") == "UTF8"
    if not plain or session.info.transaction_status != TransactionStatus.IDLE:
        return False
    # A statement that the server keeps fails once after each change of what it reads.
    session.prepare_threshold = None
    _idle.sessions[kind] = session
    return True
