"""Maintenance changes no row, takes nothing that a kept point needs, and may be killed anywhere.

The tests of one lake run in any order, and each leaves it in good shape.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.base import load
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.fold.conflicts import Conflicts
from slotlake.spark.lake import KeepPoints, LakeSettings
from slotlake.spark.maintenance import rewrite as maintenance
from slotlake.spark.maintenance.expiry import Grace
from slotlake.spark.maintenance.plan import Care, plan
from slotlake.spark.maintenance.rewrite import Maintained, maintain_table, tables_to_maintain
from slotlake.spark.maintenance.table_files import DataFile, TableFiles
from slotlake.spark.names import LakeName
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.storage.folder import local_path
from slotlake.spark.tables import metadata as catalog_metadata
from tests.spark.lake_lab import PIPELINE, Lab, delete, insert, relation, update

ONE = relation("one", ["id"], id="int8", v="text")
STILL = relation("still", ["id"], id="int8", v="text")
_DATA = {".parquet", ".puffin"}
_KEPT = 3
_NOW = Care(Grace(unused=0.0, orphan=3600.0))
_MIB = 1 << 20


@pytest.fixture(scope="module")
def lived(session: Any, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A lake that keeps three points, with a table that no batch touches."""
    place = tmp_path_factory.mktemp("lived")
    uri, warehouse = f"sqlite:///{place}/catalog.db", f"file://{place}/warehouse"
    lab = Lab.on(session, LakeSettings("lake", uri, warehouse, "shop", KeepPoints(_KEPT)))
    rows = [{"id": str(i), "v": "0"} for i in range(1000)]
    lab.init({ONE: rows, STILL: rows[:5]})
    return lab


@pytest.fixture
def worn(lived: Lab) -> Lab:
    """The same, with what four small batches leave behind."""
    _batches(lived, 4)
    return lived


def _batches(lab: Lab, count: int) -> None:
    for _ in range(count):
        at = lab.position
        lab.sync(
            *(update(ONE, id=str((at // 16 + i) % 400), v=f"u{at}") for i in range(20)),
            insert(ONE, id=str(at), v="new"),
        )


def _metadata(lab: Lab, table: str) -> catalog_metadata.Metadata:
    with open_catalog(lab.lake) as catalog:
        return load(catalog.pointers(), LakeName("shop", table)).metadata


def _files(lab: Lab, table: str) -> list[DataFile]:
    return TableFiles().data_files(catalog_metadata.head(_metadata(lab, table)))


def _maintain(lab: Lab, care: Care = _NOW) -> dict[str, Maintained]:
    names = tables_to_maintain(lab.lake, PIPELINE)
    return {n.table: maintain_table(lambda: lab.session, lab.lake, n, PIPELINE, care) for n in names}


def _one(lab: Lab, care: Care = _NOW) -> Maintained:
    return maintain_table(lambda: lab.session, lab.lake, LakeName("shop", "one"), PIPELINE, care)


def _seen(lab: Lab) -> dict[tuple[str, int], list[tuple[str | None, ...]]]:
    """All rows at all kept points."""
    points = range(lab.position - 0x100 * (_KEPT - 1), lab.position + 1, 0x100)
    return {(table, at): lab.rows(table, at) for table in ("one", "still") for at in points}


def _on_disk(lab: Lab) -> set[Path]:
    return {path for path in (lab.lake.warehouse_path / "shop" / "one").rglob("*") if path.is_file()}


def _only_what_is_needed(lab: Lab) -> bool:
    needed = TableFiles().referenced_files(_metadata(lab, "one")["snapshots"])
    data = {str(path) for path in _on_disk(lab) if path.parent.name == "data" and path.name[0] != "."}
    return data == {str(local_path(path)) for path in needed if "/data/" in path}


def test_no_row_changes_at_any_kept_point_and_what_nobody_needs_goes(worn: Lab) -> None:
    before, commits = _seen(worn), ReadPoint.latest(worn.lake).commits()
    times = (commits[-1]["commit_time"], commits[-1]["published_at"])
    assert ReadPoint.latest(worn.lake).newest_times() == times
    data = {path for path in _on_disk(worn) if path.suffix in _DATA}
    done = _maintain(worn)
    assert list(done) == ["one", "still", "commits"]
    assert (done["one"].rewritten_files >= 5, done["one"].written_files) == (True, 1)
    assert done["one"].expired_snapshots >= 1
    assert (done["still"].rewritten_files, done["still"].expired_snapshots) == (0, 0)
    assert [file.deleted for file in _files(worn, "one")] == [0]
    assert _seen(worn) == before
    assert ReadPoint.latest(worn.lake).commits() == commits
    assert ReadPoint.latest(worn.lake).newest_times() == times
    with pytest.raises(LakeError, match="keeps nothing as old as"):
        ReadPoint.at(worn.lake, worn.position - 0x100 * _KEPT)
    assert data - set(_on_disk(worn)), "what no kept point needs is gone"
    assert _only_what_is_needed(worn)
    again = _maintain(worn)
    assert {n: (m.rewritten_files, m.expired_snapshots) for n, m in again.items()} == dict.fromkeys(
        done, (0, 0)
    )


def test_batches_go_on_and_points_pass_out_of_keeping(worn: Lab) -> None:
    _maintain(worn)
    _batches(worn, 2)
    rows = _seen(worn)
    _maintain(worn)
    assert _seen(worn) == rows
    assert [r["position"] for r in ReadPoint.latest(worn.lake).commits()] == list(
        range(0x1000, worn.position + 1, 0x100)
    )
    # One a kept point, and main's, if a compaction is on top of the newest.
    assert len(_metadata(worn, "one")["snapshots"]) <= _KEPT + 1
    assert _only_what_is_needed(worn)


def test_what_a_table_met_is_remembered_over_compactions_and_expiry(worn: Lab) -> None:
    before = ReadPoint.latest(worn.lake).conflicts("public.one")
    worn.conflicts(insert(ONE, id="1", v="again"), delete(ONE, id="99999"))
    met = ReadPoint.latest(worn.lake).conflicts("public.one")
    assert met == before + Conflicts(insert_exists=1, delete_missing=1)
    for _ in range(2):
        worn.session.sql(
            "CALL lake.system.rewrite_data_files(table => 'shop.one', options => map('rewrite-all', 'true'))"
        ).collect()
        _one(worn)
    assert ReadPoint.latest(worn.lake).conflicts("public.one") == met
    _batches(worn, 1)
    assert ReadPoint.latest(worn.lake).conflicts("public.one") == met


@pytest.mark.parametrize("failpoint", ["maintain.rewritten", "maintain.expired"])
def test_ended_between_two_steps_it_leaves_nothing_wrong(
    worn: Lab, monkeypatch: pytest.MonkeyPatch, failpoint: str
) -> None:
    def die(name: str) -> None:
        if name == failpoint:
            raise KeyboardInterrupt

    rows = _seen(worn)
    monkeypatch.setattr(maintenance, "reach", die)
    with pytest.raises(KeyboardInterrupt):
        _one(worn)
    monkeypatch.undo()
    assert _seen(worn) == rows
    _batches(worn, 1)
    rows = _seen(worn)
    assert _one(worn).removed.files
    assert _seen(worn) == rows
    for path in _on_disk(worn):
        os.utime(path, (time.time() - 7200,) * 2)  # what was left is, in time, old
    _one(worn)
    assert _seen(worn) == rows
    assert _only_what_is_needed(worn)


def test_a_staged_batch_is_not_disturbed(worn: Lab) -> None:
    batch = worn.batch(update(ONE, id="1", v="staged"), insert(ONE, id="88888", v="staged"))
    worn.apply(batch)
    before = _metadata(worn, "one")
    assert _one(worn) == Maintained("shop.one", staged=True)
    assert _metadata(worn, "one") == before
    worn.publish(batch)
    assert ("88888", "staged") in worn.rows("one")


def test_what_was_current_a_moment_ago_stays_and_so_do_new_files_that_nothing_leads_to(worn: Lab) -> None:
    place = worn.lake.warehouse_path / "shop" / "one" / "data"
    fresh, old = place / "fresh.parquet", place / "old.parquet"
    for path in (fresh, old):
        path.write_bytes(b"from a statement that was killed")
    os.utime(old, (time.time() - 4000,) * 2)
    held = TableFiles().referenced_files(_metadata(worn, "one")["snapshots"])
    assert _one(worn, Care(Grace(unused=600.0, orphan=3600.0))).expired_snapshots == 0
    assert (fresh.exists(), old.exists()) == (True, False)
    assert all(local_path(path).exists() for path in held)
    fresh.unlink()


def test_a_lost_file_stops_the_removal_of_others(worn: Lab) -> None:
    """Where names on disk are not those of the metadata, nothing can be told about what is not named."""
    stray = worn.lake.warehouse_path / "shop" / "one" / "data" / "stray.parquet"
    stray.write_bytes(b"")
    os.utime(stray, (0, 0))
    still = local_path(next(f.path for f in _files(worn, "one")))
    hidden = still.rename(still.with_suffix(".hidden"))
    try:
        maintain_table(
            lambda: worn.session, worn.lake, LakeName("shop", "one"), PIPELINE, Care(Grace(1e6, 3600.0))
        )
    except LakeError:
        pass  # Spark may have wanted that file
    finally:
        hidden.rename(still)
    assert stray.exists()
    _one(worn)
    assert not stray.exists()


def test_a_table_of_another_pipeline_is_left_alone(lived: Lab) -> None:
    assert tables_to_maintain(lived.lake, "another") == []
    with pytest.raises(LakeError, match="belongs to pipeline test"):
        maintain_table(lambda: lived.session, lived.lake, LakeName("shop", "one"), "another", _NOW)


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
