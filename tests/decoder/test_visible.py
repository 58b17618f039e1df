"""Which position a snapshot stands at: judged from what it shows of the transactions in the stream."""

from __future__ import annotations

import pytest

from slotlake.decoder.slots.visible import VisibleTransactions

# Transactions in commit order: id, and where the commit record ends.
STREAM = [(11, 110), (10, 120), (13, 130), (12, 140)]


def test_what_a_snapshot_prints_is_read() -> None:
    assert VisibleTransactions.parse("10:14:10,12") == VisibleTransactions(10, 14, frozenset({10, 12}))
    assert VisibleTransactions.parse("14:14:") == VisibleTransactions(14, 14, frozenset())


@pytest.mark.parametrize(
    ("text", "stands"),
    [
        ("14:14:", 200),  # all of them: at the end of what was looked at
        ("12:14:12", 130),  # all but the last
        ("12:13:12", 120),  # 13 had not begun
        ("10:13:10,12", 110),
        ("10:11:10", 100),  # none
        ("10:14:10,12", None),  # 13 without 10, which commits earlier
        ("11:14:11", None),
        ("14:20:15,16", 200),  # what is in progress does not commit up to there
    ],
)
def test_it_stands_where_all_before_and_none_after_is_shown(text: str, stands: int | None) -> None:
    assert VisibleTransactions.parse(text).stands(100, 200, STREAM) == stands


def test_ids_in_the_stream_have_no_epoch_and_go_round() -> None:
    just_before, just_after = (1 << 32) - 2, 5
    shown = VisibleTransactions.parse(f"{(7 << 32) - 2}:{(7 << 32) + 6}:{(7 << 32) + 5}")
    assert shown.shows(just_before)
    assert not shown.shows(just_after)
    assert shown.shows(4)
    assert not shown.shows(6)
    assert shown.shows_all((1 << 32) - 9, (1 << 32) - 3)
    assert not shown.shows_all((1 << 32) - 9, 4)
