"""Files are rewritten while batches go on, and no change of theirs is lost."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.failpoints import happening
from slotlake.spark.catalog.base import load
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.direct.rewritten import forget_clones, rewrite_apart
from slotlake.spark.lake import KeepPoints, LakeSettings
from slotlake.spark.maintenance.expiry import Grace
from slotlake.spark.maintenance.plan import Care
from slotlake.spark.maintenance.rewrite import Maintained, maintain_table
from slotlake.spark.maintenance.table_files import DataFile, TableFiles
from slotlake.spark.maintenance.turns import Turns
from slotlake.spark.names import LakeName
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.tables import metadata as catalog_metadata
from tests.spark.lake_lab import PIPELINE, Lab, delete, insert, relation, update

ONE = relation("one", ["id"], id="int8", v="text")
NAME = LakeName("shop", "one")
_CARE = Care(Grace(unused=0.0, orphan=3600.0))
_KEPT = 3
long = pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="some seconds each")


@pytest.fixture(scope="module")
def lived(session: Any, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    place = tmp_path_factory.mktemp("beside")
    uri, warehouse = f"sqlite:///{place}/catalog.db", f"file://{place}/warehouse"
    # What is staged takes no small files along: they are left to maintenance.
    lake = LakeSettings("lake", uri, warehouse, "shop", KeepPoints(_KEPT), packs=False)
    lab = Lab.on(session, lake)
    lab.init({ONE: [{"id": str(i), "v": "0"} for i in range(1000)]})
    return lab


@pytest.fixture
def worn(lived: Lab) -> Lab:
    """A table with small files; no row of the newest one is deleted."""
    for _ in range(6):
        at = lived.position
        some = [update(ONE, id=str((at // 16 + i) % 400), v=f"u{at}") for i in range(20)]
        lived.sync(*some, insert(ONE, id=str(at), v="new"))
    return lived


def _metadata(lab: Lab) -> catalog_metadata.Metadata:
    with open_catalog(lab.lake) as catalog:
        return load(catalog.pointers(), NAME).metadata


def _files(lab: Lab) -> list[DataFile]:
    return TableFiles().data_files(catalog_metadata.head(_metadata(lab)))


def _clones(lab: Lab) -> list[LakeName]:
    with open_catalog(lab.lake) as catalog:
        return [name for name in catalog.names() if name.namespace.startswith("slotlake_rewriting")]


def _maintain(lab: Lab, meanwhile: Callable[[], object] = lambda: None) -> Maintained:
    lock = threading.Lock()

    def batch() -> None:
        with lock:  # a batch that works beside it: this waits for ever if the lock is not free
            meanwhile()

    turns = Turns(lambda: lock, 5.0, rewrite=rewrite_apart)
    with happening("maintain.written", batch):
        return maintain_table(lambda: lab.session, lab.lake, NAME, PIPELINE, _CARE, turns)


def _on_disk(lab: Lab) -> set[Path]:
    files = (lab.lake.warehouse_path / "shop" / "one").rglob("*")
    return {path for path in files if path.is_file() and path.name[0] != "."}


def _seen(lab: Lab) -> dict[int, list[tuple[str | None, ...]]]:
    points = range(lab.position - 0x100 * (_KEPT - 1), lab.position + 1, 0x100)
    return {at: lab.rows("one", at) for at in points}


@pytest.mark.timeout(120)
def test_a_batch_that_adds_rows_meanwhile_costs_nothing(worn: Lab) -> None:
    before = sorted(worn.rows("one"))
    numbers = _row_numbers(worn)
    done = _maintain(worn, lambda: worn.sync(insert(ONE, id="700001", v="meanwhile")))
    assert done.rewritten_files >= 5
    assert done.given_up == 0
    assert sorted(worn.rows("one")) == sorted([*before, ("700001", "meanwhile")])
    assert len(_files(worn)) == 2, "the packed file, and the batch's own"
    assert all(file.deleted == 0 for file in _files(worn))
    after = _row_numbers(worn)
    assert {key: after[key] for key in numbers} == numbers, "rows keep their numbers"
    assert catalog_metadata.live_rows(catalog_metadata.head(_metadata(worn))) == len(before) + 1
    assert not _clones(worn)
    namespaces = {row[0] for row in worn.session.sql("SHOW NAMESPACES IN lake").collect()}
    assert not [name for name in namespaces if "rewriting" in name]
    assert not [path for path in _on_disk(worn) if "rewriting" in str(path)]
    worn.sync(update(ONE, id="700001", v="after"), delete(ONE, id="0"))
    assert ("700001", "after") in worn.rows("one")
    assert "0" not in {row[0] for row in worn.rows("one")}
    worn.sync(delete(ONE, id="700001"), insert(ONE, id="0", v="0"))


def _by_id(lab: Lab) -> dict[str | None, str | None]:
    return {row[0]: row[1] for row in lab.rows("one")}


def _row_numbers(lab: Lab) -> dict[str, tuple[int, int]]:
    rows = lab.session.sql("SELECT id, _row_id, _last_updated_sequence_number FROM lake.shop.one").collect()
    return {str(row[0]): (row[1], row[2]) for row in rows}


@pytest.mark.timeout(120)
def test_what_a_batch_changes_meanwhile_is_not_lost(worn: Lab) -> None:
    rows = _by_id(worn)
    changes = [update(ONE, id="5", v="meanwhile"), delete(ONE, id="7")]
    done = _maintain(worn, lambda: worn.sync(*changes))
    rows["5"] = "meanwhile"
    del rows["7"]
    assert _by_id(worn) == rows
    assert done.given_up > 0
    assert done.rewritten_files >= 5, "what was given up is rewritten in a short turn"
    assert len(_files(worn)) == 1
    needed = TableFiles().referenced_files(_metadata(worn)["snapshots"])
    data = {path for path in _on_disk(worn) if path.suffix == ".parquet"}
    assert len(data) == len([path for path in needed if path.endswith(".parquet")]), "nothing is left behind"
    worn.sync(insert(ONE, id="7", v="again"))


@long
@pytest.mark.timeout(120)
def test_points_of_before_and_of_meanwhile_stay_as_they_were(worn: Lab) -> None:
    seen = _seen(worn)
    _maintain(worn, lambda: worn.sync(update(ONE, id="9", v="m")))
    for at, rows in _seen(worn).items():
        assert at not in seen or rows == seen[at]
    assert ReadPoint.latest(worn.lake).position == worn.position


@long
@pytest.mark.timeout(120)
def test_a_batch_that_is_staged_is_waited_for(worn: Lab) -> None:
    batch = worn.batch(update(ONE, id="11", v="staged"))

    def stage() -> None:
        worn.apply(batch)
        threading.Timer(1.0, lambda: worn.publish(batch)).start()

    done = _maintain(worn, stage)
    assert not done.staged
    assert _by_id(worn)["11"] == "staged"


@long
@pytest.mark.timeout(120)
def test_killed_before_the_commit_it_leaves_the_table_as_it_was(
    worn: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    seen = _seen(worn)
    with monkeypatch.context() as patch:
        patch.setattr("slotlake.spark.direct.rewritten.Rewritten.close", lambda self: None)  # as a SIGKILL
        with pytest.raises(KeyboardInterrupt):
            _maintain(worn, die)
    assert _seen(worn) == seen
    assert len(_clones(worn)) == 1
    forget_clones(worn.lake, "another")
    assert len(_clones(worn)) == 1
    forget_clones(worn.lake, PIPELINE)
    assert not _clones(worn)
    worn.sync(update(ONE, id="13", v="after"))
    seen = _seen(worn)
    _maintain(worn)
    assert _seen(worn) == {**_seen(worn), **seen}
    assert len(_files(worn)) == 1
