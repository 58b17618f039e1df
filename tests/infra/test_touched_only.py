"""A sync does no work for tables that its batch does not touch: counted, function by function."""

from __future__ import annotations

import gc
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, reduce
from operator import and_
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from slotlake.bench.tables.placed import place_tables
from slotlake.bench.workload import COLUMNS
from slotlake.decoder.errors import LakeError
from slotlake.infra.pipeline import Pipeline
from slotlake.infra.source.fingerprints import CatalogFingerprint
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.names import LakeName
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.tables import metadata
from tests.conftest import Database
from tests.infra.without_spark import opened, without_spark

__all__ = ["without_spark"]  # a fixture
pytestmark = [pytest.mark.server, pytest.mark.usefixtures("without_spark")]
_TOUCHED, _FEW, _MANY = 2, 10, 110
_CHANGE = "; ".join(f"UPDATE t{i} SET quantity = quantity + 1 WHERE id = 1" for i in range(_TOUCHED))
# Where a call is made → what is called, from Python or in C.
Calls = Counter[tuple[str, str]]


def _placed(database: Database, folder: Path, count: int) -> Pipeline:
    """A pipeline with so many tables; all but the first are put into its lake without a copy."""
    names = [f"t{i}" for i in range(count)]
    first = names[: _TOUCHED + 1]
    pipeline = opened(database, folder, f"of{count}", first)
    pipeline.init()
    added = ", ".join(names[_TOUCHED + 1 :])
    database.execute(f"ALTER PUBLICATION of{count} ADD TABLE {added}")
    place_tables(pipeline, first[-1], set(names[_TOUCHED + 1 :]))
    return pipeline


def _counted(work: Callable[[], Any]) -> Calls:
    """What this thread calls meanwhile."""
    calls: Calls = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            calls[_place(frame.f_code), str(argument.__name__)] += 1
        elif event == "call" and frame.f_back is not None:
            calls[_place(frame.f_back.f_code), _place(frame.f_code)] += 1

    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def _place(code: CodeType) -> str:
    return f"{'/'.join(Path(code.co_filename).parts[-3:])}:{code.co_qualname}"


def test_a_warm_sync_calls_nothing_for_each_table(database: Database, tmp_path: Path) -> None:
    database.execute("; ".join(f"CREATE TABLE t{i} ({COLUMNS})" for i in range(_MANY)))
    rows = (f"INSERT INTO t{i} (id, quantity) VALUES (1, 0), (2, 0)" for i in range(_TOUCHED))
    database.execute("; ".join(rows))
    with ExitStack() as stack:
        few, many = (stack.enter_context(_placed(database, tmp_path, count)) for count in (_FEW, _MANY))
        counted: dict[tuple[str, int], list[Calls]] = {}
        for warm in (False, False, True, True, True):
            database.execute(_CHANGE)
            for pipeline, count in ((few, _FEW), (many, _MANY)):
                for what, touched in (("batch", _TOUCHED), ("idle", 0)):
                    if warm:
                        calls = _counted(partial(_synced, pipeline, touched))
                        counted.setdefault((what, count), []).append(calls)
                    else:
                        _synced(pipeline, touched)
        for what in ("batch", "idle"):
            # What is done now and then, as polling while one waits, is not in all of them as often as that.
            always, of_few = (reduce(and_, counted[what, count]) for count in (_MANY, _FEW))
            more = always - of_few
            # Nor does what follows the history's length say anything of the tables: what the server writes by
            # itself now and then, between two syncs of one of them, makes theirs differ.
            first, *_, last = counted[what, _FEW]
            more = Counter({each: by for each, by in more.items() if last[each] <= first[each]})
            assert {each: by for each, by in more.items() if by >= 0.9 * (_MANY - _FEW)} == {}, what
            assert always.total() > 1000


def _synced(pipeline: Pipeline, touched: int, *left: str) -> None:
    report = pipeline.sync()
    assert len(report.tables) == touched
    assert len(report.warnings) == len(left)
    for warning, table in zip(report.warnings, left, strict=True):
        assert f"the pipeline file names {table}, which is not published any more" in warning


def test_what_others_do_to_a_table_that_no_batch_touches_is_noticed(
    database: Database, tmp_path: Path
) -> None:
    """In a warm process, by the next sync: in the lake, and at the source."""
    database.execute("; ".join(f"CREATE TABLE t{i} ({COLUMNS})" for i in range(_FEW)))
    database.execute("; ".join(f"INSERT INTO t{i} (id, quantity) VALUES (1, 0)" for i in range(_TOUCHED)))
    with _placed(database, tmp_path, _FEW) as pipeline:
        for _ in range(2):
            database.execute(_CHANGE)
            _synced(pipeline, _TOUCHED)
        rolled_back, dropped = LakeName("shop", "t0"), LakeName("shop", f"t{_FEW - 1}")
        with open_catalog(pipeline.lake) as catalog:
            table = load_one(catalog, rolled_back)
            before = table.metadata["snapshots"][0]["snapshot-id"]
            catalog.move([catalog.prepared(table, metadata.with_ref(table.metadata, metadata.MAIN, before))])
        for _ in range(2):
            with pytest.raises(LakeError, match=r"shop\.t0 was rolled back by hand"):
                pipeline.sync()
        with open_catalog(pipeline.lake) as catalog:
            now = load_one(catalog, rolled_back)
            catalog.move([catalog.prepared(now, table.metadata)])
        _synced(pipeline, 0)
        with open_catalog(pipeline.lake) as catalog:
            catalog.drop([dropped])
        shutil.rmtree(tmp_path / f"of{_FEW}" / "shop" / dropped.table)
        assert pipeline.sync().added_tables == [f"public.{dropped.table}"]
        database.execute(f"CREATE TABLE later ({COLUMNS}); ALTER PUBLICATION of{_FEW} ADD TABLE later")
        assert pipeline.sync().added_tables == ["public.later"]
        _synced(pipeline, 0)
        left = f"public.t{_TOUCHED}"
        database.execute(f"ALTER PUBLICATION of{_FEW} DROP TABLE {left}")
        _synced(pipeline, 0, left)
        shape = ReadPoint.latest(pipeline.lake).schema(left)
        assert CatalogFingerprint.from_json(shape.fingerprint).members == frozenset({"left"})  # type: ignore[union-attr]
        database.execute(_CHANGE)
        _synced(pipeline, _TOUCHED, left)
