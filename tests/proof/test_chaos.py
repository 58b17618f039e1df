"""Kills at any moment: every cut that a reader sees stays a state of the source (`chaos`)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.proof import workload
from tests.proof.chaos import KINDS

pytestmark = [pytest.mark.server, pytest.mark.timeout(12 * 3600)]
KILLS = os.environ.get("SLOTLAKE_TEST_KILLS", "300")
RECORD = os.environ.get("SLOTLAKE_TEST_RECORD", "")


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_is_a_state_of_the_source(kind: str) -> None:
    command = [sys.executable, "-P", "-m", "tests.proof.chaos", "--kills", KILLS, "--kind", kind]
    command += ["--record", f"{RECORD}.{kind}"] if RECORD else []
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def _cut(
    lsn: int = 1, *, lists: list[tuple[int, str]], **changed: list[tuple[int, int]]
) -> dict[str, object]:
    accounts = [(number, 0) for number in range(1, workload.ACCOUNTS + 1)]
    return {
        "lsn": lsn, "account": accounts, "entry": [], "settled": [], "left_list": lists, "right_list": lists,
    } | changed  # fmt: skip


def test_what_is_no_state_is_noticed() -> None:
    """The judge, given what it must refuse."""
    accounts = [(number, 0) for number in range(1, workload.ACCOUNTS + 1)]
    whole = _cut(lists=[(0, "1,2")])
    assert not list(workload.wrong_with(whole))
    half = whole | {"right_list": [(0, "1")]}
    torn = whole | {"account": [(1, 5), *accounts[1:]]}
    lost = whole | {"account": accounts[1:]}
    twice = whole | {"left_list": [(0, "1,2,2")], "right_list": [(0, "1,2,2")]}
    for cut in (half, torn, lost, twice):
        assert list(workload.wrong_with(cut)), cut


def test_what_is_no_order_is_noticed() -> None:
    final = _cut(9, lists=[(0, "1,2,3")])
    log = [("begun", 1, 0.0), ("ended", 1, 1.0), ("begun", 2, 2.0), ("ended", 2, 3.0), ("begun", 3, 4.0)]
    right = [_cut(1, lists=[(0, "1")]), _cut(2, lists=[(0, "1,2")])]
    assert not list(workload.wrong_between(right, final, log))
    back = list(reversed(right))
    other = [_cut(1, lists=[(0, "2")])]
    for cuts in (back, other):
        assert list(workload.wrong_between(cuts, final, log)), cuts
    early = [_cut(1, lists=[(1, "2")])]  # 1 had ended before 2 began
    two_lists = _cut(9, lists=[(0, "1,3"), (1, "2")])
    assert list(workload.wrong_between(early, two_lists, log))
    assert list(workload.wrong_between([], _cut(9, lists=[(0, "1")]), log)), "the source lost 2"
