"""A SQL catalog that a thread opens once for a whole batch."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from slotlake.spark.catalog.base import Catalog
from slotlake.spark.catalog.open import catalog_stays_open, open_catalog
from slotlake.spark.lake import LakeSettings


def opened(lake: LakeSettings) -> Catalog:
    with open_catalog(lake) as catalog:
        return catalog


def test_it_is_opened_once_within_its_block_and_thread(tmp_path: Path) -> None:
    lake = LakeSettings("lake", f"sqlite:///{tmp_path}/catalog.db", tmp_path.as_uri(), "shop")
    assert opened(lake) is not opened(lake)
    with catalog_stays_open():
        one = opened(lake)
        with catalog_stays_open():
            assert opened(lake) is one
        assert opened(lake) is one
        assert opened(replace(lake, namespace="other")) is not one
        others: list[Catalog] = []
        thread = threading.Thread(target=lambda: others.append(opened(lake)))
        thread.start()
        thread.join()
        assert others[0] is not one
        others[0].make_namespace("seen")  # by another connection, meanwhile
        assert ("seen",) in one.iceberg.list_namespaces()
    assert opened(lake) is not one
