"""Maintenance changes no row, takes nothing that a kept point needs, and may be killed anywhere."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from decoder.errors import LakeError
from spark import catalog_metadata
from spark.catalog import open_catalog
from spark.catalog_base import load
from spark.conflicts import Conflicts
from spark.expiry import Grace
from spark.lake import KeepPoints, LakeSettings
from spark.maintenance import Care, Maintained, maintain_table, plan, tables_to_maintain
from spark.names import LakeName
from spark.read import Cut
from spark.table_files import DataFile, TableFiles
from tests.spark.lake_lab import PIPELINE, Lab, delete, insert, relation, update

ONE = relation("one", ["id"], id="int8", v="text")
LOG = relation("log", [], "f", v="int4")
_NOW = Care(Grace(unused=0.0, orphan=3600.0))
_MIB = 1 << 20


def _metadata(lab: Lab, table: str) -> catalog_metadata.Metadata:
    with open_catalog(lab.lake) as catalog:
        return load(catalog.pointers(), LakeName("shop", table)).metadata


def _files(lab: Lab, table: str) -> list[DataFile]:
    return TableFiles().data_files(catalog_metadata.head(_metadata(lab, table)))


def _maintain(lab: Lab, care: Care = _NOW) -> dict[str, Maintained]:
    names = tables_to_maintain(lab.lake, PIPELINE)
    assert names[-1].table == "commits"
    return {n.table: maintain_table(lab.session, lab.lake, n, PIPELINE, care) for n in names}


def _on_disk(lab: Lab, table: str) -> set[Path]:
    return {path for path in (lab.lake.warehouse_path / "shop" / table).rglob("*") if path.is_file()}


def _fill(lab: Lab, batches: int) -> None:
    for _ in range(batches):
        at = lab.position
        lab.sync(
            *(update(ONE, id=str((at // 16 + i) % 400), v=f"u{at}") for i in range(20)),
            *(insert(ONE, id=str(at + i), v="new") for i in range(3)),
            delete(ONE, id=str(500 + at // 0x100)),
            insert(LOG, v=str(at)),
            delete(LOG, v="0"),
        )


@pytest.fixture
def kept(lab: Lab) -> Lab:
    """Three points kept of eight, and a table that no batch touched."""
    lab.lake = replace(lab.lake, keep=KeepPoints(3))
    rows = [{"id": str(i), "v": "0"} for i in range(1000)]
    still = relation("still", ["id"], id="int8", v="text")
    lab.init({ONE: rows, LOG: [{"v": "0"}] * 20, still: rows[:5]})
    _fill(lab, 7)
    return lab


def test_no_row_changes_at_any_kept_point_and_what_nobody_needs_goes(kept: Lab) -> None:
    points = [0x1500, 0x1600, 0x1700]
    tables = ("one", "log", "still")
    before = {(t, at): kept.rows(t, at) for t in tables for at in points}
    commits = Cut.latest(kept.lake).commits()
    assert len(_files(kept, "one")) == 8
    size = sum(path.stat().st_size for path in _on_disk(kept, "one"))
    done = _maintain(kept)
    assert (done["one"].rewritten_files, done["one"].written_files) == (8, 1)
    assert done["one"].expired_snapshots >= 3
    assert done["still"] == Maintained("shop.still", removed=done["still"].removed)
    assert (len(_files(kept, "one")), sum(f.deleted for f in _files(kept, "one"))) == (1, 0)
    assert {(t, at): kept.rows(t, at) for t in tables for at in points} == before
    assert Cut.latest(kept.lake).commits() == commits
    with pytest.raises(LakeError, match="oldest point is 0/1500"):
        Cut.at(kept.lake, 0x14FF)
    assert sum(path.stat().st_size for path in _on_disk(kept, "one")) < size
    again = _maintain(kept)
    assert {n: (m.rewritten_files, m.expired_snapshots) for n, m in again.items()} == dict.fromkeys(done, (0, 0))


def test_batches_go_on_and_points_pass_out_of_keeping(kept: Lab) -> None:
    for _ in range(3):
        _maintain(kept)
        _fill(kept, 2)
    rows = {at: kept.rows("one", at) for at in (kept.position - 0x100, kept.position)}
    _maintain(kept)
    assert {at: kept.rows("one", at) for at in rows} == rows
    assert [row["position"] for row in Cut.latest(kept.lake).commits()] == list(
        range(0x1000, kept.position + 1, 0x100)
    )
    metadata = _metadata(kept, "one")
    # One a kept point, the compaction, and the first of the two that a batch or a rewrite makes at most.
    assert len(metadata["snapshots"]) <= 5
    led_to = set(TableFiles().reached(metadata["snapshots"]))
    data = {str(path) for path in _on_disk(kept, "one") if path.parent.name == "data" and path.name[0] != "."}
    assert data == {path for path in led_to if "/data/" in path}


def test_what_a_table_met_is_remembered_over_compactions_and_expiry(kept: Lab) -> None:
    kept.conflicts(insert(ONE, id="1", v="again"), delete(ONE, id="99999"))
    met = Cut.latest(kept.lake).conflicts("public.one")
    assert met == Conflicts(insert_exists=1, delete_missing=1)
    for _ in range(2):
        kept.session.sql(
            "CALL lake.system.rewrite_data_files(table => 'shop.one', options => map('rewrite-all', 'true'))"
        ).collect()
        _maintain(kept)
    assert Cut.latest(kept.lake).conflicts("public.one") == met
    kept.sync(insert(ONE, id="77777", v="x"))
    assert Cut.latest(kept.lake).conflicts("public.one") == met


def test_a_staged_batch_is_not_disturbed(kept: Lab) -> None:
    batch = kept.batch(update(ONE, id="1", v="staged"), insert(ONE, id="88888", v="staged"))
    kept.apply(batch)
    before = _metadata(kept, "one")
    done = _maintain(kept)
    assert done["one"] == Maintained("shop.one", staged=True)
    assert done["log"].rewritten_files
    assert _metadata(kept, "one") == before
    kept.publish(batch)
    assert ("88888", "staged") in kept.rows("one")


def test_what_was_current_a_moment_ago_stays_and_so_do_new_files_that_nothing_leads_to(kept: Lab) -> None:
    place = kept.lake.warehouse_path / "shop" / "one" / "data"
    fresh, old = place / "fresh.parquet", place / "old.parquet"
    for path in (fresh, old):
        path.write_bytes(b"from a statement that was killed")
    os.utime(old, (time.time() - 4000,) * 2)
    before = _metadata(kept, "one")
    held = TableFiles().reached(before["snapshots"])
    done = _maintain(kept, Care(Grace(unused=600.0, orphan=3600.0)))
    assert done["one"].expired_snapshots == 0
    assert done["one"].removed.files == 1
    assert (fresh.exists(), old.exists()) == (True, False)
    assert all(Path(path).exists() for path in held)


def test_a_table_of_another_pipeline_is_left_alone(kept: Lab) -> None:
    assert tables_to_maintain(kept.lake, "another") == []
    with pytest.raises(LakeError, match="belongs to pipeline test"):
        maintain_table(kept.session, kept.lake, LakeName("shop", "one"), "another", _NOW)


def _file(number: int, mib: float, share: float = 0.0) -> DataFile:
    return DataFile(f"/f{number}", int(mib * _MIB), 1000, int(1000 * share))


def test_the_plan_for_a_table_in_good_shape_is_to_do_nothing() -> None:
    assert plan([], 0, _NOW) is None
    assert plan([_file(i, 60) for i in range(9)], 0, _NOW) is None
    assert plan([_file(i, 100, 0.09) for i in range(9)], 0, _NOW) is None
    assert plan([_file(i, 100) for i in range(9)] + [_file(9, 1)] * 4, 0, _NOW) is None


def test_small_files_are_packed_and_large_ones_not_with_them() -> None:
    options = plan([_file(i, 64) for i in range(4)] + [_file(10 + i, 0.1) for i in range(5)], 0, _NOW)
    assert options is not None
    assert int(options["min-file-size-bytes"]) < 64 * _MIB
    assert options["delete-ratio-threshold"] == "1.0"
    assert "max-files-to-rewrite" not in options


@pytest.mark.parametrize(
    ("shares", "held_mib", "expected"),
    [
        ([0.2, 0.15, 0.12, 0.05], 0, 0.15),  # not all at once: kept points hold what is replaced
        ([0.2, 0.15, 0.12, 0.05], 150, 0.2),
        ([0.2, 0.15, 0.12, 0.05], 1000, None),
        ([0.4, 0.3, 0.12, 0.05], 1000, 0.3),  # too many to wait for that
        ([0.09, 0.0, 0.0, 0.0], 0, None),
    ],
)
def test_files_with_deleted_rows(shares: list[float], held_mib: int, expected: float | None) -> None:
    options = plan([_file(i, 100, share) for i, share in enumerate(shares)], held_mib * _MIB, _NOW)
    assert (None if options is None else float(options["delete-ratio-threshold"])) == expected


def test_no_more_than_so_much_in_one_go() -> None:
    care = Care(_NOW.grace, rewrite_bytes_max=10 * _MIB)
    options = plan([_file(i, 1) for i in range(50)], 0, care)
    assert options is not None
    assert options["max-files-to-rewrite"] == "10"
