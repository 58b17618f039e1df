"""A lake without keys of its own: a REST catalog lends them for each table, and for nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.catalog.abilities import abilities_of
from slotlake.spark.catalog.open import check_lake, open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.storage import stores
from slotlake.spark.storage.base import StoreRefusedError
from slotlake.spark.storage.bucket import BucketStore
from slotlake.spark.storage.settings import StorageSettings
from tests.lending_store import LendingStore
from tests.spark.lending_proxy import LendingProxy
from tests.spark.rest_catalog import LocalRestCatalog

ASKS = {"header.X-Iceberg-Access-Delegation": "vended-credentials"}


pytestmark = pytest.mark.server  # Java, for the catalog


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LendingStore]:
    with LendingStore(tmp_path_factory.mktemp("lending")) as running:
        yield running


@pytest.fixture(scope="module")
def rest_in(store: LendingStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalRestCatalog(tmp_path_factory.mktemp("rest"), store=store.inside) as server:
        yield server.uri


@pytest.fixture
def proxy(rest_in: str, store: LendingStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[LendingProxy]:
    """The server, for a machine that has no keys."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", "/nowhere")
    store.refused.clear()
    with LendingProxy(rest_in, store, seconds=2.0) as proxy:
        yield proxy


def _lake(proxy: LendingProxy, folder: Path) -> LakeSettings:
    name = "l" + "".join(each for each in folder.name if each.isalnum())
    return LakeSettings(
        "lake", proxy.uri, f"s3://lake/{name}", "shop", publish="per_table", rest=ASKS, exchange=folder
    )


def test_keys_are_lent_for_a_table_and_renewed(
    proxy: LendingProxy, store: LendingStore, tmp_path: Path
) -> None:
    lake = _lake(proxy, tmp_path)
    check_lake(lake)
    assert abilities_of(lake).lends_keys
    inside = BucketStore(
        "s3://lake", StorageSettings(endpoint=store.inside.endpoint, access_key="x", secret_key="x")
    )
    assert [file.location for file in inside.files(lake.root)] == []  # nothing is left of the attempt
    table = lake.root / "shop" / "orders"
    lake_files.write_new(table / "data" / "1", b"one")  # the table is not there yet
    assert proxy.begun[-1] == "orders"
    opened, lent = stores.store_of(table / "data"), proxy.lent[table]
    time.sleep(2.2)
    assert opened.read(table / "data" / "1") == b"one"  # by other keys
    assert proxy.lent[table] == lent + 1
    other = lake.root / "shop__eu" / "orders"  # of a namespace that is not there
    lake_files.write_new(other / "data" / "1", b"two")
    lake_files.remove([table / "data" / "1", other / "data" / "1"])  # each by its own keys
    with open_catalog(lake) as catalog:
        assert ("shop__eu",) not in catalog.iceberg.list_namespaces()
    assert store.refused == []
    settings = stores.settings_of(table)
    strange = BucketStore("s3://lake", settings)
    with pytest.raises(StoreRefusedError, match="with the keys of the REST catalog: AccessDenied"):
        strange.read(other / "data" / "1")
    with pytest.raises(LakeError, match="it belongs to no table"):
        lake_files.write_new(lake.root / "orders", b"")


def test_keys_for_all_of_s3_count_for_the_table_that_they_came_with(
    proxy: LendingProxy, store: LendingStore, tmp_path: Path
) -> None:
    proxy.whole, lake = True, _lake(proxy, tmp_path)
    with open_catalog(lake) as catalog:
        catalog.make_namespace("shop")
        for name in ("a", "b", "a"):
            file = lake.root / "shop" / name / "data" / "1"
            assert lake_files.size(file) is None
    assert store.refused == []


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ({"lends": False}, "its answer about the table has none"),
        ({"lends": False, "signs": True}, r"it signs requests instead \(remote signing\)"),
        ({"elsewhere": True}, r"the server would put the table at .*-1"),
    ],
    ids=["lends nothing", "signs", "elsewhere"],
)
def test_a_server_that_lends_no_keys_for_the_place_is_refused(
    kind: dict[str, bool], why: str, proxy: LendingProxy, store: LendingStore, tmp_path: Path
) -> None:
    for name, value in kind.items():
        setattr(proxy, name, value)
    lake = _lake(proxy, tmp_path)
    with pytest.raises(LakeError, match=why) as refused:
        check_lake(lake)
    assert "give keys in lake.storage" in refused.value.way_out
    with open_catalog(lake) as catalog:
        assert not [space for space in catalog.iceberg.list_namespaces() if "probe" in space[0]]
    inside = BucketStore(
        "s3://lake", StorageSettings(endpoint=store.inside.endpoint, access_key="x", secret_key="x")
    )
    assert [file.location for file in inside.files(lake.root)] == []


def test_who_borrows(tmp_path: Path) -> None:
    """Only who asks for it, has no keys, and stages nowhere else."""
    lake = LakeSettings("lake", "https://rest", "s3://b/w", "shop", rest=ASKS, exchange=tmp_path)
    assert lake.borrows_keys
    keys = StorageSettings(access_key="a", secret_key="b")
    others = [
        replace(lake, rest={}),
        replace(lake, rest={"header.x-iceberg-access-delegation": "none"}),
        replace(lake, storage=keys),
        replace(lake, staging="sqlite:////x.db"),
        replace(lake, warehouse="gs://b/w"),
        replace(lake, warehouse="/w"),
    ]
    assert not any(each.borrows_keys for each in others)
