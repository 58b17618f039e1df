"""Small tables of a batch are staged at the same time, and nothing goes on when one of them fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from slotlake.decoder.errors import ApplyError
from slotlake.spark.apply import together as apply_together
from slotlake.spark.apply.together import Job, Opened, is_small, run_jobs
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.merge import run as apply_run
from slotlake.spark.names import LakeName
from slotlake.spark.publish.commits import RUN
from slotlake.spark.tables import metadata as catalog_metadata
from tests.spark.lake_lab import Lab, insert, relation, update

TABLES = [relation(name, ["id"], id="int4", v="text") for name in ("a", "b", "c")]


@pytest.fixture
def two_hands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_together, "workers_max", lambda: 2)


def test_small_ones_meet_and_large_ones_are_alone(lab: Lab, two_hands: None) -> None:
    both, at_work, most = threading.Barrier(2, timeout=60), [0], {}

    def staged(name: str, waits: bool) -> Any:
        def run(opened: Opened) -> tuple[str, Any]:
            at_work[0] += 1
            if waits:
                both.wait()
            most[name] = at_work[0]
            at_work[0] -= 1
            return name, opened()

        return run

    jobs = {
        "first": Job(staged("first", True), small=True),
        "large": Job(staged("large", False), small=False),
        "second": Job(staged("second", True), small=True),
    }
    found = run_jobs(lab.engine, lab.lake, jobs)
    assert list(found) == [name for name, _ in found.values()] == ["first", "large", "second"]
    assert found["large"][1] is lab.session
    assert found["first"][1] is not found["second"][1], "each has the properties of its own snapshots"
    assert most["large"] == 1
    assert dict(run_jobs(lab.engine, lab.lake, jobs).values()).keys() == jobs.keys()


def test_what_fails_ends_what_others_do(lab: Lab, two_hands: None) -> None:
    begun, ended, failing = [], [], threading.Event()

    def slow(opened: Opened) -> None:
        begun.append("slow")
        failing.wait(60)
        time.sleep(0.2)
        ended.append("slow")

    def fails(opened: Opened) -> None:
        begun.append("fails")
        failing.set()
        raise ApplyError("refused")

    def later(opened: Opened) -> None:
        time.sleep(0.1)
        begun.append("later")

    jobs = {"slow": Job(slow, small=True), "fails": Job(fails, small=True)}
    jobs |= {f"later {i}": Job(later, small=True) for i in range(9)}
    with pytest.raises(ApplyError, match="refused"):
        run_jobs(lab.engine, lab.lake, jobs)
    assert ended == ["slow"], "nothing is at work any more"
    assert begun.count("later") < 9
    before = list(begun)
    time.sleep(0.3)
    assert begun == before


def test_a_table_with_floats_has_spark_for_itself(lab: Lab, two_hands: None) -> None:
    """Parquet decides on dictionaries by one object for all writers of a process (docs/adr/0092)."""
    both, using, seen = threading.Barrier(2, timeout=60), set[str](), dict[str, set[str]]()

    def staged(name: str) -> Any:
        def run(opened: Opened) -> None:
            both.wait()  # without Spark they meet
            assert opened() is opened()
            using.add(name)
            time.sleep(0.2)
            seen[name] = set(using)
            using.discard(name)

        return run

    for floats in ("first", "second"):
        run_jobs(
            lab.engine,
            lab.lake,
            {name: Job(staged(name), small=True, alone=name == floats) for name in ("first", "second")},
        )
        assert seen == {"first": {"first"}, "second": {"second"}}
    run_jobs(lab.engine, lab.lake, {name: Job(staged(name), small=True) for name in ("first", "second")})
    assert {"first", "second"} in seen.values()


def test_which_tables_have_spark_for_themselves(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[dict[str, bool]] = []

    def noted(engine: Any, lake: Any, jobs: Mapping[str, Job[Any]]) -> dict[str, Any]:
        alone.append({name.rpartition(".")[2].strip("`"): job.alone for name, job in jobs.items()})
        return run_jobs(engine, lake, jobs)

    before, floats = relation("a", ["id"], id="int4", v="text"), relation("f", ["id"], id="int4", v="float4")
    lab.init({before: [], floats: []})
    monkeypatch.setattr(apply_together, "run_jobs", noted)
    lab.sync(insert(before, id="1", v=""), insert(floats, id="1", v="0"))
    lab.sync(insert(relation("a", ["id"], id="int4", v="text", w="float8"), id="2", v="", w="-0"))
    assert alone == [{"a": False, "f": True}, {"a": True}]


def test_tables_staged_at_once_are_what_the_batch_says(
    lab: Lab, two_hands: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.init({table: [{"id": "1", "v": "old"}] for table in TABLES})
    for number in range(2):
        lab.sync(
            *(update(table, id="1", v=f"{table.table} {number}") for table in TABLES),
            *(insert(table, id=str(number + 2), v="new") for table in TABLES),
        )
    for table in TABLES:
        expected = [("1", f"{table.table} 1"), ("2", "new"), ("3", "new")]
        assert lab.rows(table.table) == expected
    with monkeypatch.context() as patched:
        _at_the_same_moment(patched)
        lab.sync(*(update(table, id="2", v="") for table in TABLES[:2]))
    said = {_summary(lab, table.table)[RUN] for table in TABLES[:2]}
    assert len(said) == 2, "no snapshot says what another one is to say"
    refused = lab.batch(
        *(insert(table, id="9", v="") for table in TABLES[:2]), insert(TABLES[2], id="1", v="")
    )
    with pytest.raises(ApplyError, match="the source did not have"):
        lab.apply(refused, "fail")
    with open_catalog(lab.lake) as catalog:
        for table in TABLES:
            metadata = load_one(catalog, LakeName("shop", table.table)).metadata
            staged, main = (catalog_metadata.ref(metadata, name) for name in ("stage", "main"))
            assert staged == main, "nothing of a refused batch is staged"


def _at_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two statements begin when both tables have told what their snapshots are to say."""
    both, run = threading.Barrier(2, timeout=300), apply_run.run

    def together(*given: Any) -> None:
        both.wait()
        run(*given)

    monkeypatch.setattr(apply_run, "run", together)


def _summary(lab: Lab, table: str) -> dict[str, str]:
    with open_catalog(lab.lake) as catalog:
        metadata = load_one(catalog, LakeName("shop", table)).metadata
    return catalog_metadata.summary(catalog_metadata.head(metadata))


def test_what_is_small(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = lab.batch(*(insert(TABLES[0], id=str(number), v="") for number in range(3)))
    assert is_small(batch, batch.relations)
    monkeypatch.setattr(apply_together, "SMALL_ROWS_MAX", 2)
    assert not is_small(batch, batch.relations)
    batch.manifest["files"] = [{"bytes": 1 << 30}]
    monkeypatch.setattr(apply_together, "SMALL_ROWS_MAX", 9)
    assert not is_small(batch, batch.relations)
