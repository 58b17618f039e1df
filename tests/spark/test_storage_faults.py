"""An object store that fails: each request is made again with limits, and named when it is given up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.spark.session_errors import StoreFailure, store_failure
from slotlake.spark.storage import bucket, requests
from slotlake.spark.storage.base import StoreRefusedError, StoreUnavailableError
from slotlake.spark.storage.bucket import BucketStore
from slotlake.spark.storage.location import Location
from slotlake.spark.storage.settings import StorageSettings
from slotlake.spark.storage.uploads import end_uploads
from tests.faulty_store import Fault, FaultyStore

pytestmark = pytest.mark.server
CONTENT: Final = b"0123456789" * 500
LONG: Final = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
SOON: Final = [Fault.SLOW_DOWN, Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.CUT]
PASSING: Final = [*SOON, Fault.ERROR, Fault.SILENT] if LONG else SOON


@pytest.fixture
def faulty(object_store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    """A faulty way to the store, and limits that a test can wait for."""
    monkeypatch.setattr(requests, "REQUEST_SECONDS", 1)
    monkeypatch.setattr(requests, "RETRY_SECONDS", 3)
    monkeypatch.setattr(bucket, "_PART_BYTES", 5 << 20)
    with FaultyStore(object_store.endpoint) as way:
        yield way


@pytest.fixture
def store(object_store: LocalObjectStore, faulty: FaultyStore) -> BucketStore:
    """The store by that way."""
    return BucketStore("s3://lake", StorageSettings(**{**object_store.storage, "endpoint": faulty.endpoint}))


def _operations(store: BucketStore, folder: Location, large: Path) -> dict[str, Callable[[], Any]]:
    """Each operation, and what it must give."""

    def removed() -> bool:
        store.remove([folder / "x"])
        return store.size(folder / "x") is None

    def uploaded() -> bool:
        store.put(large, folder / "large")
        return store.size(folder / "large") == large.stat().st_size

    def written() -> bool:
        store.write_new(folder / "new", CONTENT)
        return store.read(folder / "new") == CONTENT

    return {
        "write an object": written,
        "read an object": lambda: store.read(folder / "x") == CONTENT,
        "find an object": lambda: store.size(folder / "x") == len(CONTENT),
        "list objects": lambda: [f.location for f in store.files(folder)] == [folder / "x"],
        "remove an object": removed,
        "read parts": lambda: store.open(folder / "x").read() == CONTENT,
        "upload parts": uploaded,
    }


@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_not_noticed(
    store: BucketStore, faulty: FaultyStore, fault: Fault, tmp_path: Path
) -> None:
    large = tmp_path / "large"
    large.write_bytes(CONTENT * 2500)
    root = Location(f"s3://lake/{tmp_path.name}")
    for name in _operations(store, root, large):
        folder = root / f"{fault.name}-{name}".replace(" ", "-")
        store.write_new(folder / "x", CONTENT)
        rule = faulty.add(fault, times=1)
        assert _operations(store, folder, large)[name](), name
        assert rule.met == 1, name
        faulty.heal()


def test_what_does_not_pass_is_named(store: BucketStore, faulty: FaultyStore, tmp_path: Path) -> None:
    root = Location(f"s3://lake/{tmp_path.name}")
    store.write_new(root / "x", CONTENT)
    answers = {Fault.SLOW_DOWN: "SlowDown", Fault.RESET_BEFORE: "reset by peer", Fault.SILENT: "in time"}
    for fault, answer in list(answers.items())[: None if LONG else 1]:
        rule = faulty.add(fault)
        begun = time.monotonic()
        with pytest.raises(StoreUnavailableError) as raised:
            store.write_new(root / fault.name, CONTENT)
        assert time.monotonic() - begun < 15
        faulty.heal()
        assert raised.value.retryable
        what = raised.value.what
        assert all(part in what for part in (faulty.endpoint, "write an object", answer)), what
        assert f"tried {rule.met} times" in what
        assert raised.value.where == root / fault.name
        assert "lake.storage" in raised.value.way_out
        assert [file.location for file in store.files(root)] == [root / "x"]


def test_a_refusal_is_not_tried_again(store: BucketStore, faulty: FaultyStore, tmp_path: Path) -> None:
    root = Location(f"s3://lake/{tmp_path.name}")
    store.write_new(root / "x", CONTENT)
    for name, operation in _operations(store, root, tmp_path / "none").items():
        if name == "upload parts":
            continue
        rule = faulty.add(Fault.EXPIRED)
        with pytest.raises(StoreRefusedError) as raised:
            operation()
        faulty.heal()
        assert rule.met == 1, name
        assert not raised.value.retryable
        assert "expired" in raised.value.way_out


def test_a_list_that_is_cut_is_not_an_empty_one(
    store: BucketStore, faulty: FaultyStore, tmp_path: Path
) -> None:
    root = Location(f"s3://lake/{tmp_path.name}")
    store.write_new(root / "x", CONTENT)
    faulty.add(Fault.CUT, "GET")
    with pytest.raises(LakeError):
        list(store.files(root))


def test_anothers_object_is_not_taken_for_an_answer_that_was_lost(
    store: BucketStore, faulty: FaultyStore, tmp_path: Path
) -> None:
    root = Location(f"s3://lake/{tmp_path.name}")
    faulty.add(Fault.RESET_AFTER, "PUT", times=1)
    store.write_new(root / "x", CONTENT)
    faulty.add(Fault.RESET_AFTER, "PUT", times=1)
    with pytest.raises(FileExistsError):
        store.write_new(root / "x", b"another")
    assert store.read(root / "x") == CONTENT


_UPLOADS = """
import sys
from pathlib import Path
from slotlake.spark.storage.bucket import BucketStore
from slotlake.spark.storage.location import Location
from slotlake.spark.storage.settings import StorageSettings
from slotlake.spark.storage.uploads import end_uploads
store = BucketStore("s3://lake", StorageSettings(**__import__("json").loads(sys.argv[1])))
store.put(Path(sys.argv[2]), Location(sys.argv[3]))
"""


def test_parts_of_a_killed_upload_are_seen_and_removed(
    object_store: LocalObjectStore, faulty: FaultyStore, store: BucketStore, tmp_path: Path
) -> None:
    root, other = (Location(f"s3://lake/{tmp_path.name}/{name}") for name in ("warehouse", "warehouse2"))
    (tmp_path / "large").write_bytes(CONTENT * 10_000)
    stuck = faulty.add(Fault.SILENT, "PUT", path="partNumber=3")
    settings = StorageSettings(**object_store.storage)
    storage = json.dumps({**object_store.storage, "endpoint": faulty.endpoint})
    for folder in (root, other):
        arguments = [storage, str(tmp_path / "large"), folder / "t" / "data" / "a b.parquet"]
        with subprocess.Popen([sys.executable, "-c", _UPLOADS, *arguments]) as process:
            before, deadline = stuck.met, time.monotonic() + 60
            while stuck.met == before and time.monotonic() < deadline:
                time.sleep(0.05)
            process.kill()
    assert stuck.met >= 2
    faulty.heal()
    assert list(store.files(root)) == []
    assert end_uploads(root, settings, time.time() - 3600) == 0  # they may be at work
    assert end_uploads(root, settings, time.time() + 60) == 1
    assert end_uploads(root, settings, time.time() + 60) == 0
    assert end_uploads(other, settings, time.time() + 60) == 1
    assert end_uploads(Location("gs://lake/x"), StorageSettings(), time.time()) is None
    wrong = replace(settings, secret_key="wrong")
    with pytest.raises(StoreUnavailableError, match="403") as raised:
        end_uploads(root, wrong, time.time())
    assert "AbortMultipartUpload" in raised.value.way_out


def test_a_small_object_is_opened_and_read_by_one_request(
    store: BucketStore, faulty: FaultyStore, tmp_path: Path
) -> None:
    root = Location(f"s3://lake/{tmp_path.name}")
    store.write_new(root / "small", CONTENT)
    store.write_new(root / "large", CONTENT * 1000)
    before = len(faulty.requests)
    with store.open(root / "small") as file:
        file.seek(-10, 2)
        assert file.read() == CONTENT[-10:]
        file.seek(0)
        assert file.read() == CONTENT
    assert [method for method, _, _ in faulty.requests[before:]] == ["GET"]
    with store.open(root / "large") as file:
        file.seek(-10, 2)
        assert file.read() == CONTENT[-10:]
        file.seek(60_000)
        assert file.read(10_000) == (CONTENT * 20)[60_000:70_000]
    with pytest.raises(FileNotFoundError):
        store.open(root / "none")


_TASK = "Job aborted due to stage failure: Task 1 in stage 22.0 failed 1 times"
_SDK = "software.amazon.awssdk.services.s3.S3Exception: {} (Service: S3, Status Code: {}, Request ID: x)"


def test_what_a_store_did_to_spark_is_read_from_its_error() -> None:
    expected = {
        f"{_TASK}: {_SDK.format('Slow down.', 503)} (SDK Attempt Count: 9)": (
            StoreFailure("Slow down. (status 503); tried 9 times", None, passing=False, refused=False)
        ),
        f"{_TASK}: {_SDK.format('Expired.', 403)} (SDK Attempt Count: 1)": (
            StoreFailure("Expired. (status 403)", None, passing=False, refused=True)
        ),
        f"{_TASK}: java.io.UncheckedIOException: java.net.SocketException: Connection reset\n\tat x": (
            StoreFailure("Connection reset", None, passing=True, refused=False)
        ),
        "Failed to fetch file: s3://b/t/x.parquet\nCaused by: java.net.SocketException: Connection reset": (
            StoreFailure("Connection reset", "s3://b/t/x.parquet", passing=True, refused=False)
        ),
        "org.postgresql.util.PSQLException: java.net.SocketException: Connection reset": None,
        "[DIVIDE_BY_ZERO] Division by zero.": None,
    }
    for text, failure in expected.items():
        assert store_failure(Exception(text)) == failure, text
