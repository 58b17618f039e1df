"""Server-side encryption: every object that is written is asked to be encrypted, by slotlake and by Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from slotlake import Pipeline
from slotlake.bench.requests import Forwarder
from slotlake.bench.requests import Request as Noted
from slotlake.spark.direct.choice import ALWAYS, NEVER, SWITCH
from slotlake.spark.storage.bucket import BucketStore
from slotlake.spark.storage.location import Location
from slotlake.spark.storage.settings import StorageSettings
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.spark.glue_server import LocalGlue

pytestmark = pytest.mark.timeout(600)
KEY = "arn:aws:kms:us-east-1:1:key/lake"
_HEADER = re.compile(rb"(?i)^(x-amz-server-side-encryption[a-z-]*): (.*)$")
ASKED = {"x-amz-server-side-encryption": "aws:kms", "x-amz-server-side-encryption-aws-kms-key-id": KEY}


@dataclass
class _Written:
    """A request that writes.

    Attributes:
        request: its method and target; ``by``: Spark or slotlake.
        asked: the headers about encryption.
    """

    request: str
    by: str
    asked: dict[str, str] = field(default_factory=dict)


class _Heads(Forwarder):
    """A way to the store that notes what writers ask for."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.written: list[_Written] = []

    def _ask(self, content: bytes, under_way: list[Noted]) -> None:
        before = [*under_way]
        super()._ask(content, under_way)
        if under_way == before or under_way[0].method not in {"PUT", "POST"}:
            return
        head = content.partition(b"\r\n\r\n")[0].split(b"\r\n")
        found = [match for match in map(_HEADER.match, head) if match]
        asked = {match[1].decode().lower(): match[2].decode() for match in found}
        self.written.append(_Written(f"{under_way[0].method} {under_way[0].target}", under_way[0].by, asked))

    def take_written(self) -> list[_Written]:
        """Return what was written since the last time, without requests that remove, and ends of uploads."""
        written, self.written = self.written, []
        return [each for each in written if not re.search(r"[?&](delete|uploadId=[^&]*$)", each.request)]


@pytest.fixture
def way(tmp_path: Path) -> Iterator[_Heads]:
    """A way to S3 as moto plays it: S3Proxy refuses who asks for encryption."""
    with LocalGlue(tmp_path) as server:
        with urlopen(Request(f"{server.endpoint}/lake", method="PUT"), timeout=30):
            pass
        with _Heads(int(server.endpoint.rpartition(":")[2])) as forwarder:
            yield forwarder


def _settings(way: _Heads, **more: str) -> dict[str, str]:
    """The section ``lake.storage``."""
    endpoint = f"http://127.0.0.1:{way.port}"
    return {"endpoint": endpoint, "access_key": "test", "secret_key": "test", "region": "us-east-1", **more}


def test_all_that_is_written(
    way: _Heads,
    database: Database,
    connect: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT g, 0 FROM generate_series(1, 90) g"
    )
    log = "changelog: {path: 's3://lake/log'}\n"
    file = pipeline_file(tmp_path, database, ["t"], extra=log, uri=f"sqlite:///{tmp_path}/lake.db")
    lines = file.read_text().splitlines()
    [at] = [i for i, line in enumerate(lines) if line.startswith("  warehouse: ")]
    section = json.dumps(_settings(way, encryption="aws:kms", kms_key=KEY))
    lines[at : at + 1] = ["  warehouse: s3://lake/encrypted", f"  storage: {section}"]
    file.write_text("\n".join(line for line in lines if not _is_other_storage(line, section)))
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        _require_asked(way.take_written(), {"Spark", "slotlake"})
        for mode, writers in ((NEVER, {"Spark", "slotlake"}), (ALWAYS, {"slotlake"})):
            monkeypatch.setenv(SWITCH, mode)
            database.execute("UPDATE t SET v = v + 1 WHERE id < 9")
            pipeline.sync()
            _require_asked(way.take_written(), writers)
        pipeline.maintain()
        way.take_written()
        assert_equal(database, pipeline, ["t"])


def _is_other_storage(line: str, section: str) -> bool:
    """Whether it is the storage of the run's own lakes (`tests.storage`)."""
    return line.startswith("  storage: ") and line != f"  storage: {section}"


def _require_asked(written: list[_Written], writers: set[str]) -> None:
    assert {each.by for each in written} == writers
    assert [each for each in written if each.asked != ASKED] == []


@pytest.mark.seconds
@pytest.mark.parametrize("size", [10, 20 << 20], ids=["whole", "in parts"])
def test_an_upload(way: _Heads, tmp_path: Path, size: int) -> None:
    """A store encrypts parts as it was asked at the beginning; AWS refuses the header on a part."""
    settings = StorageSettings(**_settings(way, encryption="AES256"))  # type: ignore[arg-type]
    (tmp_path / "file").write_bytes(b"x" * size)
    BucketStore("s3://lake", settings).put(tmp_path / "file", Location("s3://lake/a/file"))
    parts = [each for each in way.written if "partNumber=" in each.request]
    assert len(parts) == (2 if size > 1000 else 0)
    assert [each.asked for each in parts] == [{}] * len(parts)
    [begun] = [each for each in way.written if "uploadId=" not in each.request]
    assert begun.asked == {"x-amz-server-side-encryption": "AES256"}
