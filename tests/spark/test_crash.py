"""Killed anywhere, run again: the lake is as if nothing had happened, and no reader saw anything else.

The child dies by SIGKILL; the Spark server it talked to lives on, and may even finish what it was
told to do.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.integrity import find_damage
from slotlake.spark.maintenance.small_files import pack_table
from slotlake.spark.names import LakeName
from slotlake.spark.publish.publication import lake_position
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.session import open_session
from tests.spark import crash_child
from tests.spark.lake_lab import PIPELINE, Lab, update

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def connected(connect: str, lake: LakeSettings) -> Iterator[Lab]:
    session = open_session(lake, remote=connect)
    yield Lab(session, lake)
    session.stop()


@pytest.mark.parametrize("failpoint", ["init.mid_copy", "init.mid_copy:2", "init.before_publish"])
def test_a_copy_that_was_killed(connected: Lab, connect: str, failpoint: str) -> None:
    _killed("copy", connected.lake, connect, failpoint)
    with pytest.raises(LakeError, match="the lake has no such table"):
        ReadPoint.latest(connected.lake)
    crash_child.copy(connected)
    assert len(connected.rows("items")) == 2000
    assert connected.rows("log") == [("0",)] * 3
    assert not list(connected.lake.warehouse_path.rglob(".slotlake-copying"))


@pytest.mark.parametrize(
    ("failpoint", "published"),
    [
        ("apply.mid_merge", False),
        ("apply.mid_merge:2", False),
        ("apply.between_tables", False),
        ("publish.before_swap", False),
        ("publish.after_swap", True),
    ],
)
def test_a_batch_that_was_killed(connected: Lab, connect: str, failpoint: str, published: bool) -> None:
    lab = connected
    lab.init(crash_child.contents())
    _killed("batch", lab.lake, connect, failpoint)
    items, log = crash_child.expected()
    if published:
        assert lake_position(lab.lake) == lab.position + 0x100
        assert lab.rows("log") == log
    else:
        assert lake_position(lab.lake) == lab.position
        assert (len(lab.rows("items")), lab.rows("log")) == (2000, [("0",)] * 3)
    batch = crash_child.batch(lab)
    while True:
        assert lab.apply(batch).already_published == published
        try:
            assert lab.publish(batch).already == published
            break
        except LakeError as error:  # the killed run's statement was still at work in the server
            assert "another run wrote to what is staged" in error.what
    assert lab.rows("items") == sorted(items)
    assert lab.rows("log") == log


@pytest.mark.parametrize("failpoint", ["compact.rewriting", "compact.rewritten"])
def test_a_compaction_that_was_killed(connected: Lab, connect: str, failpoint: str) -> None:
    lab = connected
    lab.init(crash_child.contents())
    for i in range(6):
        lab.sync(*(update(crash_child.ITEMS, id=str(j), v=f"u{i}") for j in range(i, 2000, 20)))
    rows = lab.rows("items")
    _killed("pack", lab.lake, connect, failpoint)
    assert lab.rows("items") == rows
    assert lab.rows("items", lab.position - 0x100) != rows
    batch = crash_child.batch(lab)
    while True:
        lab.apply(batch)
        try:
            lab.publish(batch)
            break
        except LakeError as error:  # the killed run's statement was still at work in the server
            assert "another run wrote to what is staged" in error.what
    assert len(lab.rows("items")) == 1600
    assert find_damage(lab.lake, PIPELINE, files=True) == []
    name = LakeName("shop", "items")
    pack_table(lambda: lab.session, lab.lake, name, PIPELINE, 128 << 20)
    assert len(lab.rows("items")) == 1600


@pytest.mark.skipif("SLOTLAKE_TEST_HISTORIES" not in os.environ, reason="test_modes.py has the short version")
def test_a_batch_that_was_killed_between_the_modes_of_a_table(connected: Lab, connect: str) -> None:
    lab, modes = connected, {"public.items": ["append", "history"]}
    lab.init(crash_child.contents(), modes=modes)
    _killed("batch", lab.lake, connect, "apply.between_modes:2")
    assert _beside(lab) == {"R": 2000, True: 2000}
    batch = crash_child.batch(lab)
    lab.apply(batch)
    lab.publish(batch)
    assert _beside(lab) == {"R": 2000, "U": 500, "D": 500, "I": 100, True: 1600, False: 1000}
    assert lab.rows("items") == sorted(crash_child.expected()[0])


def _beside(lab: Lab) -> dict[object, int]:
    """Changes by kind, and versions by whether they hold."""
    changes = "SELECT op, count(*) FROM lake.shop.items__changes WHERE op <> 'C' GROUP BY op"
    versions = "SELECT is_open, count(*) FROM lake.shop.items__history GROUP BY is_open"
    return {row[0]: row[1] for sql in (changes, versions) for row in lab.session.sql(sql).collect()}


def _killed(task: str, lake: LakeSettings, remote: str, failpoint: str) -> None:
    settings = {name: getattr(lake, name) for name in ("catalog", "uri", "warehouse", "namespace")}
    child = subprocess.run(
        [sys.executable, "-m", "tests.spark.crash_child", task, remote, json.dumps(settings)],
        env={**os.environ, "SLOTLAKE_FAILPOINT": failpoint},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert child.returncode == -signal.SIGKILL, child.stdout + child.stderr
