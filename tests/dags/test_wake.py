"""When a look at the source wakes `cdc_sync`: the rule, told as a story of looks."""

from __future__ import annotations

from slotlake.decoder.slots.activity import Look
from slotlake.infra.airflow.wake import AGAIN_SECONDS, WakeRule


class _Story:
    """Looks at a source, a second apart; each test says what has happened before the next look."""

    def __init__(self) -> None:
        self.rule = WakeRule()
        self.now = 1000.0
        self.snapshot, self.wal, self.confirmed, self.rows = 1, 100, 100, 0
        self.counts = True

    def look(self, seconds: float = 1.0) -> str | None:
        self.now += seconds
        counters = (self.rows,) if self.counts else None
        return self.rule.wakes(Look(str(self.snapshot), self.wal, self.confirmed, counters), self.now)

    def commit(self, rows: int = 1) -> None:
        self.snapshot += 1
        self.wal += 50
        self.rows += rows

    def other_database(self) -> None:
        self.commit(rows=0)

    def checkpoint(self) -> None:
        self.wal += 120

    def run(self) -> None:
        self.confirmed = self.wal


def test_an_idle_source_never_wakes() -> None:
    story = _Story()
    assert story.look() is None
    for _ in range(50):
        story.checkpoint()
        assert story.look(AGAIN_SECONDS / 2) is None


def test_a_burst_is_one_run_and_a_change_during_the_run_one_more() -> None:
    story = _Story()
    assert story.look() is None
    story.commit()
    assert story.look() == "changes"
    for _ in range(20):
        story.commit()
        assert story.look() is None
    story.run()
    assert story.look() is None  # that run had them all
    story.commit()
    assert story.look() == "changes"
    story.confirmed = story.wal
    story.commit()  # after that run has read
    story.commit()
    assert story.look() == "changes"
    story.run()
    assert [story.look() for _ in range(100)] == [None] * 100


def test_counters_that_come_late_wake_only_if_the_run_did_not_have_the_change() -> None:
    story = _Story()
    story.look()
    story.commit()
    assert story.look() == "changes"
    story.commit(rows=0)  # its counters come later
    story.run()
    assert story.look() is None
    story.rows += 1
    assert story.look() is None
    story.commit(rows=0)
    assert story.look() is None
    story.rows += 1
    assert story.look() == "changes"


def test_other_databases_wake_only_so_often_that_no_wal_piles_up() -> None:
    story = _Story()
    assert story.look() is None
    woken = 0
    for _ in range(int(4 * AGAIN_SECONDS)):
        story.other_database()
        reason = story.look()
        if reason is not None:
            assert reason == "confirm"
            woken += 1
            story.run()
    assert woken in (3, 4)


def test_wal_without_transactions_is_confirmed_too() -> None:
    story = _Story()
    story.look()
    story.wal += 64 << 20  # vacuum
    assert story.look() is None
    assert story.look(AGAIN_SECONDS) == "confirm"
    assert story.look() is None
    story.run()
    assert story.look(AGAIN_SECONDS) is None


def test_a_run_that_failed_is_repeated() -> None:
    story = _Story()
    story.look()
    story.commit()
    assert story.look() == "changes"
    story.commit()
    assert story.look(AGAIN_SECONDS / 2) is None
    assert story.look(AGAIN_SECONDS) == "changes"
    assert story.look() is None


def test_a_trigger_that_starts_wakes_if_anything_is_lacking() -> None:
    story = _Story()
    story.other_database()
    assert story.look() == "changes"
    assert story.look() is None
    story = _Story()
    story.checkpoint()
    story.confirmed = story.wal
    assert story.look() is None


def test_without_counters_each_transaction_of_the_server_counts() -> None:
    story = _Story()
    story.counts = False
    assert story.look() is None
    story.other_database()
    assert story.look() == "changes"


def test_no_slot_no_wake() -> None:
    rule = WakeRule()
    assert rule.wakes(Look("1", 100, None, (1,)), 1.0) is None
