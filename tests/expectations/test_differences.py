"""Which keys differ: the same answer as a plain comparison, whatever fits into memory at once."""

from __future__ import annotations

import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotlake.expectations import differences
from slotlake.expectations.differences import Differing, differing_parts
from slotlake.expectations.hashing import Hashes, sums
from slotlake.expectations.results import DIFFERENT, DUPLICATED, EXTRA, MISSING
from slotlake.expectations.source_side import BUCKETS, Sums

Pairs = list[tuple[int, int]]
KEYS = st.sampled_from([-7, 0, 3, 8195, 2**40, -(2**63)])


def _row(key: int, value: int) -> tuple[int, int]:
    """A row's hash is made of its key too: sums of a bucket are equal by chance only."""
    digest = blake2b(f"{key} {value}".encode(), digest_size=8).digest()
    return key, int.from_bytes(digest, "big", signed=True)


PAIRS = st.lists(st.builds(_row, KEYS, st.integers(0, 3)), max_size=12)


@dataclass
class _Side:
    """Rows that were hashed; ``asked``: rows given at a time."""

    keys: Hashes
    rows: Hashes

    def __post_init__(self) -> None:
        self.asked: list[int] = []

    def sums(self) -> Sums:
        counts, totals = sums(self.keys & (BUCKETS - 1), self.rows, BUCKETS)
        return {int(b): (int(counts[b]), totals[b]) for b in np.flatnonzero(counts)}

    def hashes(self, buckets: Sequence[int]) -> tuple[Hashes, Hashes]:
        chosen = np.isin(self.keys & (BUCKETS - 1), buckets)
        self.asked.append(int(chosen.sum()))
        return self.keys[chosen], self.rows[chosen]


def _side(pairs: Pairs) -> _Side:
    return _Side(np.array([k for k, _ in pairs], np.int64), np.array([r for _, r in pairs], np.int64))


def _all(source: _Side, lake: _Side) -> Differing:
    return Differing.joined([*differing_parts(source, lake, source.sums(), lake.sums())])


def _plain(source: Pairs, lake: Pairs) -> Counter[tuple[str, int, int]]:
    """Key by key, in the words of the rule."""
    sides: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number, pairs in enumerate((source, lake)):
        for key, row in pairs:
            sides[key][number].append(row)
    different: Counter[tuple[str, int, int]] = Counter()
    for key, (here, there) in sides.items():
        if len(there) < len(here):
            different[MISSING, key, len(here) - len(there)] += 1
        elif len(there) > len(here):
            different[DUPLICATED if here else EXTRA, key, len(there) - len(here)] += 1
        elif sum(here) % 2**64 != sum(there) % 2**64:
            different[DIFFERENT, key, 1] += 1
    return different


@pytest.mark.parametrize("at_once", [1, 5, 1 << 20])
@settings(deadline=None)
@given(source=PAIRS, lake=PAIRS, same=PAIRS)
def test_as_a_plain_comparison(source: Pairs, lake: Pairs, same: Pairs, at_once: int) -> None:
    before = differences.ROWS_AT_ONCE
    differences.ROWS_AT_ONCE = at_once
    try:
        assert Counter(_all(_side(source + same), _side(lake + same))) == _plain(source + same, lake + same)
    finally:
        differences.ROWS_AT_ONCE = before


def test_memory_follows_the_rows_at_once_and_not_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    keys, rows = random.integers(-(2**62), 2**62, (2, 200_000))
    source, lake = _Side(keys, rows), _Side(keys, rows + 1)
    peaks = []
    for at_once in (8 << 20, 20_000):
        monkeypatch.setattr(differences, "ROWS_AT_ONCE", at_once)
        expected, actual = source.sums(), lake.sums()
        tracemalloc.start()
        total = sum(len(part) for part in differing_parts(source, lake, expected, actual))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert total == 200_000
    assert max(source.asked[1:]) <= 11_000
    assert peaks[1] < peaks[0] / 3
    assert peaks[0] < 400_000 * 70
