"""The places for connections of a copy by several machines: so many over all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path

import pytest

from slotlake.decoder.errors import SourceError
from slotlake.infra.copy.claims import RangeClaims
from slotlake.infra.copy.ranges import DoneRanges
from tests.conftest import Database

pytestmark = pytest.mark.server
HELD = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"


class Machine:
    """Claims of one process, over a connection of its own."""

    def __init__(self, database: Database, folder: Path, key: str = "copy shop") -> None:
        self.claims = RangeClaims(database.dsn, key, DoneRanges(folder / "done"), 3)
        self.ended = threading.Event()

    def turn(self) -> AbstractContextManager[None]:
        assert self.claims.turn is not None
        return self.claims.turn(self.ended)

    def has_turn(self, entered: threading.Event, leaves: threading.Event) -> None:
        with self.turn():
            entered.set()
            assert leaves.wait(20)

    def copies(self) -> int:
        """How many ranges one thread copies until the machine's copy has ended."""
        for number in count():
            with self.turn():
                if self.ended.wait(1.0):
                    return number
        raise AssertionError


@contextmanager
def _waiting(machine: Machine, leaves: threading.Event) -> Iterator[threading.Event]:
    entered = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(machine.has_turn, entered, leaves)
        yield entered
        leaves.set()
        done.result(20)


def test_so_many_turns_over_all_machines(database: Database, tmp_path: Path) -> None:
    """Two of one machine and one of another; a fourth waits until one of them has ended."""
    one, two = Machine(database, tmp_path), Machine(database, tmp_path)
    other = Machine(database, tmp_path, "copy another pipeline")
    leaves = threading.Event()
    with one.claims, two.claims, other.claims:
        with one.turn(), two.turn():
            with one.turn(), _waiting(two, leaves) as entered:
                assert not entered.wait(0.6)
                with other.turn():
                    assert database.execute(HELD) == [(5,)]  # four places, and that one waits
                two.ended.set()  # its copy has: it goes on without a place
                assert entered.wait(10)
                assert database.execute(HELD) == [(3,)]
            two.ended.clear()
            leaves.clear()
            with _waiting(two, leaves) as entered:
                assert entered.wait(10)
        assert database.execute(HELD) == [(0,)]


def test_a_machine_that_waits_gets_its_share(database: Database, tmp_path: Path) -> None:
    """One has all places and asks again at once each time; the other comes later, and looks now and then."""
    one, two = Machine(database, tmp_path), Machine(database, tmp_path)
    with one.claims, two.claims, ThreadPoolExecutor(5) as pool:
        ranges = [pool.submit(one.copies) for _ in range(4)]
        time.sleep(0.5)
        ranges.append(pool.submit(two.copies))
        time.sleep(6)
        one.ended.set()
        two.ended.set()
        *of_one, of_two = [each.result(20) for each in ranges]
    assert of_two >= 4, of_one
    assert sum(of_one) >= 10, "the other two places are this machine's, without a pause"


def test_the_places_of_a_dead_machine_are_free(database: Database, tmp_path: Path) -> None:
    one, two = Machine(database, tmp_path), Machine(database, tmp_path)
    with two.claims:
        turns = [one.turn() for _ in range(3)]
        for turn in turns:
            turn.__enter__()
        with _waiting(two, threading.Event()) as entered:
            assert not entered.wait(0.4)
            one.claims.connection.close()
            assert entered.wait(10)
        for turn in turns:
            with pytest.raises(SourceError, match="the connection is closed"):
                turn.__exit__(None, None, None)


def test_no_limit(database: Database, tmp_path: Path) -> None:
    with RangeClaims(database.dsn, "copy shop", DoneRanges(tmp_path)) as claims:
        assert claims.turn is None
