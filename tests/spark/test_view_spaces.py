"""For which points there are namespaces of views that stay."""

from __future__ import annotations

import pytest

from slotlake.spark.catalog.base import ViewNamespace
from slotlake.spark.catalog.view_spaces import SECONDS_APART, STAYING, point_namespace, staying


def _made(seconds_between: float, count: int, batches: int) -> list[set[int]]:
    """The points that have such namespaces after each of some batches, with so many kept points."""
    made: dict[int, float] = {}
    after = []
    for position in range(1, batches + 1):
        now = 1_000_000 + position * seconds_between
        tagged = range(max(1, position - count + 1), position + 1)
        spaces = [ViewNamespace(point_namespace("shop", at), "shop", at, made[at]) for at in made]
        stays, remaining = staying(spaces, tagged, position, now, count)
        made = {at: made.get(at, now) for at in remaining}
        assert stays == (position in made)
        after.append(set(made))
    return after


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_there_is_always_one_however_quickly_batches_follow(count: int) -> None:
    for before, after in zip(_made(0.1, count, 350), _made(0.1, count, 350)[1:], strict=False):
        assert after
        assert before & after or count < 3, "who reads at a point is not left at once"


def test_slow_batches_get_one_each_and_few_stay() -> None:
    assert _made(SECONDS_APART, 100, 30)[-1] == set(range(31 - STAYING, 31))
    assert _made(SECONDS_APART / 2, 100, 5)[-1] == {1, 3, 5}
