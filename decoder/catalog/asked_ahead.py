"""The digest of all tables, asked for while a batch is on its way: of 10,000 it takes the server 45 ms.

A batch is compared with a catalog that is not older than its end.  So the question has a position: all that
is committed up to it was committed before the question.  For a batch that ends after it, it is asked again.

Invariant: the catalog that is shown has every transaction that was committed up to that position.  A commit
is in the WAL some time before others see it: a moment, or as long as a standby that it waits for.  Till then
its transaction is running.  So those that were running before the question are looked for after it, when
the batch is there: if one of them has ended since, the answer does not count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import psycopg

from slotlake.decoder.catalog.digests import Digest, described_digest
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import source_session

# Of prepared transactions, too; a server that replays another's WAL shows a commit before it counts as read.
_RUNNING = """
SELECT transactionid::text FROM pg_catalog.pg_locks
WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted
"""
# Most transactions end within that; for the others it is not worth waiting.
_WAIT_SECONDS, _POLL_SECONDS = 0.02, 0.002


class AskedAhead:
    """One question, which a thread and a session of their own ask.

    Args:
        dsn: the source's connection string.
        tables: OIDs, as the text of an array.
        publications: names of the publications that count.
        position: LSN after all that was committed before now.
    """

    def __init__(self, dsn: str, tables: str, publications: Sequence[str], position: int) -> None:
        self._dsn, self._tables, self._publications = dsn, tables, tuple(publications)
        self.position = position
        self._digest: Digest | None = None
        self._running: set[str] = set()
        self._thread = threading.Thread(target=self._ask, name="catalog, ahead", daemon=True)
        self._thread.start()

    def digest(
        self, connection: psycopg.Connection[Any], tables: str, publications: Sequence[str], batch_end: int
    ) -> Digest | None:
        """Return the answer; None if this must be asked now.

        Args:
            tables: OIDs, as the text of an array.
            batch_end: LSN at which the batch ends that was read meanwhile.
        """
        asked = self._tables, self._publications
        if asked != (tables, tuple(publications)) or batch_end > self.position:
            return None
        self._thread.join()
        if self._digest is None or not self._running <= _running(connection):
            return None
        return self._digest

    def _ask(self) -> None:
        try:
            with source_session(self._dsn, "reading the tables' columns") as connection:
                self._running = _still_running(connection)
                self._digest = described_digest(connection, self._tables, self._publications)
        except SlotlakeError:  # whoever asks again is told
            self._digest = None


def _still_running(connection: psycopg.Connection[Any]) -> set[str]:
    """Those of the transactions running now that do not end in a moment."""
    running, give_up_at = _running(connection), time.monotonic() + _WAIT_SECONDS
    while running and time.monotonic() < give_up_at:
        time.sleep(_POLL_SECONDS)
        running &= _running(connection)
    return running


def _running(connection: psycopg.Connection[Any]) -> set[str]:
    return {text for (text,) in connection.execute(_RUNNING).fetchall()}
