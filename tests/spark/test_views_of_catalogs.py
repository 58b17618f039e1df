"""Pinned views in each catalog that has no transaction over them; pyiceberg writes the tables, not Spark."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slotlake.spark.catalog import view_spaces
from slotlake.spark.catalog.base import load
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import COMMITS, LakeName
from slotlake.spark.storage import stores
from slotlake.spark.storage.settings import StorageSettings
from slotlake.spark.tables.metadata import Metadata
from tests.catalogs import GLUE_URI
from tests.spark.glue_server import KEYS, LocalGlue

LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
EMPTY = pa.schema([("lsn", pa.int64())])


@pytest.fixture(params=["rest", *(["nessie", "hive", "glue"] if LONG else [])])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty lake with views."""
    own = "w" + "".join(c for c in tmp_path.name.lower() if c.isalnum())
    settings = LakeSettings("lake", "", f"file://{tmp_path}/warehouse", own, views=True)
    if request.param == "glue":
        for name, text in KEYS.items():
            monkeypatch.setenv(name, text)
        with LocalGlue(tmp_path) as server:
            glue = {"endpoint": server.endpoint}
            yield replace(settings, uri=GLUE_URI, publish="per_table", glue=glue)
        return
    uri = request.getfixturevalue(request.param)
    if request.param == "nessie":
        store = request.getfixturevalue("object_store")
        storage = StorageSettings(**store.storage)
        stores.register(store.warehouse.rpartition("/")[0], storage)  # Nessie gives tables places of its own
        uri = uri.branch(own)
        settings = replace(settings, warehouse=f"{store.warehouse}/{own}", storage=storage, table_format=2)
    publish = "per_table" if request.param == "hive" else "atomic"
    yield replace(settings, uri=uri, publish=publish)


@pytest.mark.seconds
def test_made_moved_forgotten_off_and_dropped(lake: LakeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_spaces, "SECONDS_APART", 0.0)
    own, one = lake.namespace, LakeName(lake.namespace, "one")
    with open_catalog(lake) as catalog:
        catalog.require_room_for_views()
        catalog.make_namespace(own)
        for table in ("one", "two", COMMITS):
            location = f"{lake.root}/{own}/{table}"
            catalog.iceberg.create_table((own, table), EMPTY, location=location)

        def bring(*kept: int, changed: tuple[str, ...]) -> None:
            for table in (*changed, COMMITS):
                row = pa.table({"lsn": [kept[-1]]}, EMPTY)
                loaded = catalog.iceberg.load_table((own, table))
                loaded.append(row, snapshot_properties={"slotlake.lsn": f"0/{kept[-1]:X}"})
            views: Any = catalog
            commits = load(catalog.pointers(), LakeName(own, COMMITS)).metadata
            views.views.bring(_tagged(commits, kept))

        def rows(space: str, table: str) -> list[int]:
            read = catalog.iceberg.load_table((own + space, table)).scan().to_arrow()
            return sorted(int(str(lsn)) for lsn in read["lsn"].to_pylist())

        bring(0x1000, changed=("one", "two"))
        assert rows("__at", "one") == rows(_at(0x1000), "one") == [0x1000]
        bring(0x1000, 0x1100, changed=("one",))
        assert rows("__at", "one") == rows(_at(0x1100), "one") == [0x1000, 0x1100]
        assert rows("__at", "two") == rows(_at(0x1000), "one") == rows(_at(0x1100), "two") == [0x1000]
        assert {name.table for name in catalog.names()} == {"one", "two", COMMITS}
        assert len(set(catalog.view_locations(one))) >= 2
        bring(0x1100, 0x1200, changed=("two",))
        assert rows("__at", "two") == rows(_at(0x1200), "two") == [0x1000, 0x1200]
        assert rows(_at(0x1200), "one") == [0x1000, 0x1100]
        assert [space.position for space in catalog.view_namespaces()] == [0x1200, 0x1100, 0x1200]
        _off_and_dropped(lake, bring)


def _off_and_dropped(lake: LakeSettings, bring: Callable[..., None]) -> None:
    own = lake.namespace
    with open_catalog(replace(lake, views=False)) as without:
        without.bring_views()
        assert [*without.view_namespaces()] == []
    bring(0x1300, changed=())
    with open_catalog(lake) as catalog:
        catalog.drop([LakeName(own, "one")])
        assert _tables(catalog, own + "__at") == [COMMITS, "two"]
        catalog.drop([LakeName(own, table) for table in ("two", COMMITS)])
        assert [*catalog.view_namespaces()] == []
        spaces = ["".join(space) for space in catalog.iceberg.list_namespaces()]
    assert [space for space in spaces if space.startswith(own)] == [own]


def _tables(catalog: Any, space: str) -> list[str]:
    return sorted(name[-1] for name in catalog.iceberg.list_tables(space))


def _at(position: int) -> str:
    return view_spaces.point_namespace("", position)


def _tagged(metadata: Metadata, kept: tuple[int, ...]) -> Metadata:
    """The table `commits` with the tags of these points, which not every server keeps."""
    main = metadata["refs"]["main"]["snapshot-id"]
    tags = {f"lsn_0_{position:X}": {"snapshot-id": main, "type": "tag"} for position in kept}
    return {**metadata, "refs": {**metadata["refs"], **tags}}
