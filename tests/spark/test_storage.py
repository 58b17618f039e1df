"""The lake's files in an object store: each promise of a folder holds there too (a real S3 server)."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slotlake.decoder.errors import LakeError
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.infra.local.process import free_port
from slotlake.spark import lake_files
from slotlake.spark.lake import LakeSettings
from slotlake.spark.storage import bucket as bucket_module
from slotlake.spark.storage import requests, stores
from slotlake.spark.storage.base import StoreUnavailableError
from slotlake.spark.storage.bucket import RecentContent
from slotlake.spark.storage.file_io import StoreFileIO
from slotlake.spark.storage.folder import FolderStore
from slotlake.spark.storage.location import Location
from slotlake.spark.storage.settings import StorageSettings

pytestmark = pytest.mark.server


@pytest.fixture(params=["folder", "bucket"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A place where nothing is yet."""
    if request.param == "folder":
        return Location(f"file://{tmp_path}/w")
    store: LocalObjectStore = request.getfixturevalue("object_store")
    root = Location(f"{store.warehouse}/{tmp_path.name}")
    stores.register(root, StorageSettings(**store.storage))
    return root


def test_a_file_is_written_once_read_and_removed(root: Location) -> None:
    lake_files.write_new(root / "a" / "x.json", b"one")
    assert lake_files.read(root / "a" / "x.json") == b"one"
    assert lake_files.size(root / "a" / "x.json") == 3
    lake_files.remove([root / "a" / "x.json", root / "never"])
    assert lake_files.size(root / "a" / "x.json") is None
    with pytest.raises(LakeError, match="cannot be read") as raised:
        lake_files.read(root / "a" / "x.json")
    assert raised.value.where == root / "a" / "x.json"


def test_a_second_writer_of_a_name_is_refused(root: Location) -> None:
    lake_files.write_new(root / "x", b"one")
    with pytest.raises(LakeError, match="cannot be written"):
        lake_files.write_new(root / "x", b"two")
    assert lake_files.read(root / "x") == b"one"


def test_of_many_writers_one_wins(root: Location) -> None:
    store, won = stores.store_of(root), []

    def write(number: int) -> None:
        try:
            store.write_new(root / "x", b"%d" % number)
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=write, args=[number]) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.read(root / "x") == b"%d" % won[0]


def test_files_written_side_by_side_are_all_there_at_the_end(root: Location) -> None:
    names = [root / "side" / f"{number}.json" for number in range(20)]
    with lake_files.side_by_side():
        for name in names:
            lake_files.write_new(name, name.encode())
        assert lake_files.read(names[0]) == names[0].encode()  # it is waited for
        with StoreFileIO().new_output(root / "side" / "io").create() as output:
            output.write(b"too")
        assert StoreFileIO().new_input(root / "side" / "io").open().read() == b"too"
    assert lake_files.absent([*names, root / "side" / "io"]) == []
    with pytest.raises(LakeError, match="cannot be written"), lake_files.side_by_side():
        lake_files.write_new(root / "side" / "new", b"1")
        lake_files.write_new(names[3], b"2")
    assert lake_files.read(names[3]) == names[3].encode()
    with pytest.raises(ZeroDivisionError), lake_files.side_by_side():
        lake_files.write_new(root / "side" / "another", b"1")
        raise ZeroDivisionError
    assert lake_files.size(root / "side" / "another") == 1  # nothing is under way any more


def test_a_folder_is_listed_and_removed_with_all_in_it(root: Location) -> None:
    for name in ("t/data/1", "t/data/2", "t/metadata/3", "tt/other"):
        lake_files.write_new(root / name, b"12345")
    listed = {file.location.removeprefix(f"{root}/"): file for file in lake_files.files(root / "t")}
    assert set(listed) == {"t/data/1", "t/data/2", "t/metadata/3"}
    assert {file.size for file in listed.values()} == {5}
    assert all(abs(file.modified - time.time()) < 60 for file in listed.values())
    lake_files.remove_tree(root / "t")
    assert [file.location for file in lake_files.files(root)] == [root / "tt/other"]
    assert list(lake_files.files(root / "nothing")) == []


def test_files_are_uploaded_and_parts_of_them_read(root: Location, tmp_path: Path) -> None:
    table = pa.table({"n": range(3_000_000)})  # more than one part
    pq.write_table(table, tmp_path / "rows.parquet", compression="none", use_dictionary=False)
    assert (tmp_path / "rows.parquet").stat().st_size > 20 << 20
    [location] = lake_files.put([tmp_path / "rows.parquet"], root / "data", ["copy-1.parquet"])
    with lake_files.open_to_read(location) as file, pq.ParquetFile(file) as parquet:
        assert parquet.metadata.num_rows == 3_000_000
        assert parquet.read_row_group(1).column("n")[0].as_py() == parquet.metadata.row_group(0).num_rows
    assert lake_files.absent([location, root / "no"]) == [root / "no"]


def test_pyiceberg_reads_and_writes_by_the_same_store(root: Location) -> None:
    io, location = StoreFileIO(), str(root / "x.avro")
    with io.new_output(location).create() as file:
        file.write(b"half")
        assert not io.new_input(location).exists()
        file.write(b" and half")
    assert len(io.new_input(location)) == 13
    with io.new_input(location).open() as opened:
        opened.seek(5)
        assert opened.read() == b"and half"
    with pytest.raises(ZeroDivisionError), io.new_output(str(root / "y")).create() as file:
        file.write(b"x" * (1 // 0))
    assert not io.new_input(str(root / "y")).exists()
    io.delete(location)
    assert not io.new_input(location).exists()


def test_what_was_read_or_written_lately_is_not_asked_for_again(
    object_store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Location(f"{object_store.warehouse}/recent")
    stores.register(root, StorageSettings(**object_store.storage))
    store = stores.store_of(root)
    known, data, large = root / "metadata/x", root / "data/x.puffin", root / "metadata/large"
    for location, content in ((known, b"12345"), (data, b"678"), (large, b"0" * (2 << 20))):
        store.write_new(location, content)
    assert store.read(data) == b"678"
    with monkeypatch.context() as patch:
        patch.setattr(store, "_store", None)  # no request can be made
        assert store.read(known) == b"12345"
        for location in (data, large):
            with pytest.raises(AttributeError):
                store.read(location)
    assert len(store.read(large)) == 2 << 20
    store.remove([known])
    with pytest.raises(FileNotFoundError):
        store.read(known)


def test_recent_content_is_bounded() -> None:
    recent = RecentContent(10)
    a, b, c, d = (f"s3://x/metadata/{name}" for name in "abcd")
    for name in (a, b, c):
        recent.put(name, b"1234")
        recent.put(name, b"12345")
    assert [recent.get(name) for name in (a, b, c)] == [None, b"12345", b"12345"]
    recent.drop([b, "never"])
    recent.put(d, b"12345")
    assert [recent.get(name) for name in (b, c, d)] == [None, b"12345", b"12345"]


@pytest.fixture
def lake(object_store: LocalObjectStore, tmp_path: Path) -> LakeSettings:
    """A lake in the bucket."""
    return LakeSettings(
        "lake",
        f"sqlite:///{tmp_path}/catalog.db",
        f"{object_store.warehouse}/{tmp_path.name}",
        "shop",
        storage=StorageSettings(**object_store.storage),
        exchange=tmp_path / "exchange",
    )


def test_a_bucket_is_tried_before_it_is_trusted(lake: LakeSettings) -> None:
    lake_files.check_warehouse(lake)
    assert list(lake_files.files(lake.root)) == []


@pytest.mark.parametrize("wrong", ["secret_key", "access_key", "bucket"])
def test_wrong_keys_and_buckets_are_refused_in_words(lake: LakeSettings, wrong: str) -> None:
    if wrong == "bucket":
        lake = replace(lake, warehouse="s3://nobody-has-this/w")
    else:
        given: dict[str, Any] = {wrong: "not-it-0815"}
        lake = replace(lake, storage=replace(lake.storage, **given))
    with pytest.raises(LakeError) as raised:
        lake_files.check_warehouse(lake)
    text = str(raised.value)
    assert "lake.storage" in text
    assert lake.warehouse in text
    assert (lake.storage.secret_key or "") not in text
    assert "Traceback" not in text


def test_a_store_that_ignores_conditions_is_refused(
    lake: LakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overwrite(self: Any, location: Location, content: bytes) -> None:
        self._store.put(location.key, content, mode="overwrite")

    monkeypatch.setattr(bucket_module.BucketStore, "write_new", overwrite)
    with pytest.raises(LakeError, match="If-None-Match"):
        lake_files.check_warehouse(lake)


def test_a_store_that_encrypts_nothing_is_named(
    object_store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_TRIES_MAX", 2)  # obstore takes it for a failure that may pass
    store = bucket_module.BucketStore(
        object_store.warehouse, StorageSettings(**object_store.storage, encryption="AES256")
    )
    with pytest.raises(StoreUnavailableError, match="encryption is not supported") as refused:
        store.write_new(Location(f"{object_store.warehouse}/encrypted"), b"1")
    assert "(encryption, kms_key)" in str(refused.value.way_out)


def test_a_server_that_is_away_is_given_up(lake: LakeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "RETRY_SECONDS", 3)
    away = replace(lake.storage, endpoint=f"http://127.0.0.1:{free_port()}")
    begun = time.monotonic()
    with pytest.raises(LakeError, match="failed to write an object: Connection refused"):
        lake_files.check_warehouse(replace(lake, storage=away))
    assert time.monotonic() - begun < 60


def test_the_longest_prefix_says_how_a_location_is_reached(object_store: LocalObjectStore) -> None:
    good = StorageSettings(**object_store.storage)
    stores.register("s3://lake/prefix-test", replace(good, secret_key="wrong"))
    stores.register("s3a://lake/prefix-test/t", good)
    store = stores.store_of("s3://lake/prefix-test/t/x")
    store.write_new(Location("s3://lake/prefix-test/t/x"), b"1")
    with pytest.raises(PermissionError):
        stores.store_of("s3://lake/prefix-test/tt").read(Location("s3://lake/prefix-test/tt"))


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(LakeError, match="hdfs"):
        lake_files.read("hdfs://host/x")


def test_secrets_are_not_printed() -> None:
    settings = StorageSettings(access_key="hidden1", secret_key="hidden2", session_token="hidden3")
    assert "hidden" not in repr(settings)


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not share the settings of prefixes."""
    monkeypatch.setattr(stores, "_places", {})


def test_a_folder_writes_through_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("slotlake.spark.storage.folder.sync_directory", synced.append)
    FolderStore().write_new(Location(f"file://{tmp_path}/x"), b"1")
    assert synced == [tmp_path]


def test_time_limits_are_given_to_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(bucket_module, "S3Store", lambda name, **options: given.update(options))
    bucket_module.BucketStore("s3://b", StorageSettings())
    assert given["client_options"]["timeout"] == timedelta(seconds=requests.REQUEST_SECONDS)
    assert given["retry_config"]["retry_timeout"] == timedelta(seconds=requests.RETRY_SECONDS)
