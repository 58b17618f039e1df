"""What pg_upgrade leaves behind, judged: numbers of real clusters (17.11 to 18.4 to 19 RC 1), and others."""

from __future__ import annotations

from typing import Any

import pytest

from slotlake.decoder.lsn import parse_lsn
from slotlake.decoder.server.timeline import Origin
from slotlake.decoder.slots.upgraded import _unproven, is_older, quiet_xid
from tests.conftest import Database

SEGMENT = 16 << 20
POSITION = parse_lsn("0/1920310")


def unproven(
    restart: str, *, before: int = 0, frozen: Any = "741", version: int = 180004, **others: Any
) -> str | None:
    confirmed = others.get("confirmed", "0/8000148")
    row = (restart, confirmed, "768", before, frozen, others.get("segment", SEGMENT))
    origin = Origin("1", 1, others.get("next_xid", "741"))
    return _unproven(version, origin, others.get("position", POSITION), row)


@pytest.mark.parametrize(
    ("restart", "more"),
    [
        ("0/8000110", {}),  # 18: one slot, the second and the third of three
        ("0/8000148", {}),
        ("0/8000180", {}),
        ("0/80001B8", {"before": 3}),
        ("0/A000190", {"version": 190000, "confirmed": "0/A0001C8"}),
        ("0/8000110", {"segment": 1 << 20}),
        ("1/8000110", {"confirmed": "1/8000148", "next_xid": str((7 << 32) + 741)}),  # xid8 there, xid here
    ],
)
def test_a_slot_that_was_kept(restart: str, more: dict[str, Any]) -> None:
    assert unproven(restart, **more) is None


@pytest.mark.parametrize(
    ("restart", "more", "why"),
    [
        # The checkpoints of an 18 end at 150 without a slot, at 2A8 with three; a row and its commit are 96.
        ("0/80001B0", {}, "made after the upgrade"),
        ("0/80002A8", {"before": 2}, "made after the upgrade"),
        ("0/8000380", {"before": 5}, "made after the upgrade"),
        ("0/8000110", {"next_xid": ""}, "were open"),
        ("0/8000110", {"frozen": "742"}, "has begun 1 transactions after the lake's position 0/1920310"),
        ("0/8000110", {"frozen": "740"}, "not counted on"),
        ("0/8000110", {"frozen": None}, "template0"),
        ("0/8000110", {"version": 170011}, "from PostgreSQL 17 to 18"),
        ("0/8000110", {"position": parse_lsn("0/8000148")}, "does not begin behind"),
    ],
)
def test_what_is_not_proven_is_said(restart: str, more: dict[str, Any], why: str) -> None:
    assert why in (unproven(restart, **more) or "")


def test_transaction_ids_are_counted_round() -> None:
    assert is_older(767, 768)
    assert not is_older(768, 768)
    assert not is_older(769, 768)
    assert is_older((1 << 32) - 1, 3)
    assert not is_older(3, (1 << 32) - 1)


def test_it_is_noted_below_which_id_all_transactions_have_ended(database: Database) -> None:
    with database.connect() as connection, database.connect() as other:
        (ended,) = connection.execute("SELECT txid_current()").fetchone() or (0,)
        assert int(quiet_xid(connection) or 0) > ended
        other.execute("BEGIN; SELECT txid_current()")
        connection.execute("SELECT txid_current()")
        assert quiet_xid(connection) is None  # one below it is open
        other.execute("ROLLBACK")
        assert int(quiet_xid(connection) or 0) > ended + 1
