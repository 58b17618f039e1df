"""How many replication slots and WAL senders the server can still give.  Nothing here uses one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from slotlake.decoder.errors import SourceError
from slotlake.decoder.server.services import RESTART, advised

_COUNTS = """
SELECT (SELECT count(*) FROM pg_replication_slots)::int, current_setting('max_replication_slots')::int,
       (SELECT count(*) FROM pg_stat_replication)::int, current_setting('max_wal_senders')::int
"""


@dataclass(frozen=True)
class Capacity:
    """How many slots and WAL senders are in use, and how many the server's settings allow."""

    slots: int
    slots_max: int
    senders: int
    senders_max: int

    @property
    def slots_free(self) -> int:
        """How many slots can still be created."""
        return max(0, self.slots_max - self.slots)

    @property
    def senders_free(self) -> int:
        """How many replication connections can still be opened."""
        return max(0, self.senders_max - self.senders)


def capacity(connection: psycopg.Connection[Any]) -> Capacity:
    """Count the server's slots and WAL senders; every role may ask."""
    row = connection.execute(_COUNTS).fetchone()
    assert row is not None
    return Capacity(*map(int, row))


def require_free_slot(connection: psycopg.Connection[Any], where: str) -> Capacity:
    """Check that one more slot can be created.

    Raises:
        SourceError: all slots are in use.
    """
    current = capacity(connection)
    if current.slots_free == 0:
        raise SourceError(
            f"the server has no free replication slot: {current.slots} of max_replication_slots "
            f"{current.slots_max} are in use",
            where=where,
            way_out=advised(
                connection,
                "drop a slot that is not needed (SELECT slot_name, active FROM pg_replication_slots), or "
                f"raise max_replication_slots {RESTART}",
            ),
        )
    return current
