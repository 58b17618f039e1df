"""A SQL catalog that all threads of a batch use together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from slotlake.spark.catalog import open as catalogs
from slotlake.spark.catalog.base import Catalog
from slotlake.spark.catalog.open import catalog_stays_open, open_catalog
from slotlake.spark.lake import LakeSettings

pytestmark = pytest.mark.fast
T = TypeVar("T")
THREADS = 8


@pytest.fixture
def lake(tmp_path: Path) -> LakeSettings:
    return LakeSettings("lake", f"sqlite:///{tmp_path}/catalog.db", tmp_path.as_uri(), "shop")


def opened(lake: LakeSettings) -> Catalog:
    with open_catalog(lake) as catalog:
        return catalog


def in_thread(work: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_it_is_opened_once_within_its_block(lake: LakeSettings) -> None:
    assert opened(lake) is not opened(lake)
    with catalog_stays_open():
        one = opened(lake)
        with catalog_stays_open():
            assert opened(lake) is one
        assert opened(lake) is one
        assert in_thread(lambda: opened(lake)) is one
        assert opened(replace(lake, namespace="other")) is not one
    assert opened(lake) is not one


def test_it_stays_open_until_the_last_block_of_all_threads_ends(lake: LakeSettings) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def block() -> None:
        with catalog_stays_open():
            begun.set()
            may_end.wait()

    thread = threading.Thread(target=block)
    thread.start()
    begun.wait()
    try:
        with catalog_stays_open():
            one = opened(lake)
        assert opened(lake) is one
    finally:
        may_end.set()
        thread.join()
    assert opened(lake) is not one
    with catalog_stays_open():
        assert opened(lake) is not one


def test_threads_work_with_it_at_the_same_time(lake: LakeSettings) -> None:
    started = threading.Barrier(THREADS)

    def work(number: int) -> Catalog:
        started.wait()
        with open_catalog(lake) as catalog:
            for turn in range(5):
                catalog.make_namespace(f"n{number}_{turn}")
                catalog.listing()
            return catalog

    with catalog_stays_open():
        with ThreadPoolExecutor(THREADS) as pool:
            used = list(pool.map(work, range(THREADS)))
        assert len({id(each) for each in used}) == 1
        assert len(used[0].iceberg.list_namespaces()) == THREADS * 5


def test_one_that_cannot_be_opened_is_tried_again(lake: LakeSettings, tmp_path: Path) -> None:
    missing = replace(lake, uri=f"sqlite:///{tmp_path}/none/catalog.db")
    with catalog_stays_open():
        with pytest.raises(Exception, match="the catalog cannot be"):
            opened(missing)
        (tmp_path / "none").mkdir()
        assert opened(missing) is opened(missing)


def test_one_that_does_not_open_keeps_nobody_from_another(
    lake: LakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, begun, may_go_on = catalogs._catalog, threading.Event(), threading.Event()
    hanging = replace(lake, uri=f"sqlite:///{tmp_path}/other.db")

    def slowly(lake: LakeSettings) -> Catalog:
        if lake == hanging:
            begun.set()
            may_go_on.wait()
        return plain(lake)

    monkeypatch.setattr(catalogs, "_catalog", slowly)
    with catalog_stays_open(), ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(opened, hanging) for _ in range(2)]
        begun.wait()
        try:
            assert in_thread(lambda: opened(lake)) is opened(lake)
        finally:
            may_go_on.set()
        assert len({id(each.result()) for each in waiting}) == 1
