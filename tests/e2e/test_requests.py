"""How many requests a sync of one row makes to an object store: one that is added makes this test fail."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.bench.requests import Forwarder, Request, counted, one_after_another
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.spark.catalog.sql.catalog import SqlPointers
from slotlake.spark.direct.choice import ALWAYS, NEVER, SWITCH
from slotlake.spark.lake import LakeSettings
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.storage import IN_NESSIE, IN_S3, ON_REST, moved_to

# docs/adr/0051: what each of them is for.
EXPECTED = Counter(
    {
        "Spark: GET metadata file": 2,
        "Spark: HEAD list of manifests": 2,
        "Spark: GET list of manifests": 1,
        "Spark: GET manifest": 2,
        "Spark: GET data file": 1,
        "Spark: GET vectors": 2,
        "Spark: PUT data file": 1,
        "Spark: HEAD vectors": 1,
        "Spark: PUT vectors": 1,
        "Spark: PUT manifest": 3,
        "Spark: PUT list of manifests": 1,
        "Spark: PUT metadata file": 1,
        "slotlake: HEAD metadata file": 1,
        "slotlake: GET metadata file": 1,
        "slotlake: PUT metadata file": 1,
        "slotlake: PUT data file of commits": 1,
        "slotlake: PUT manifest of commits": 1,
        "slotlake: PUT list of manifests of commits": 1,
        "slotlake: PUT metadata file of commits": 1,
    }
)
# docs/adr/0064: the same change, staged without Spark.
EXPECTED_DIRECTLY = Counter(
    {
        "slotlake: HEAD metadata file": 1,
        "slotlake: GET data file": 1,
        "slotlake: GET vectors": 1,
        "slotlake: PUT data file": 1,
        "slotlake: PUT vectors": 1,
        "slotlake: PUT manifest": 2,
        "slotlake: PUT list of manifests": 1,
        "slotlake: PUT metadata file": 2,
        "slotlake: PUT data file of commits": 1,
        "slotlake: PUT manifest of commits": 1,
        "slotlake: PUT list of manifests of commits": 1,
        "slotlake: PUT metadata file of commits": 1,
    }
)
# Look, read, write what is staged, write the publication: 4 on a quiet machine; on a busy one the uploads of
# a wave do not begin together, and 7 were seen.
CHAIN_DIRECTLY = 10
# 20 to 22 on a quiet machine; the files of a publication in turn would be four more.
CHAIN = 23


@pytest.fixture
def way(object_store: LocalObjectStore) -> Iterator[Forwarder]:
    """A way to the store that counts."""
    with Forwarder(int(object_store.endpoint.rpartition(":")[2])) as forwarder:
        yield forwarder


def _requests(way: Forwarder, pipeline: Pipeline, database: Database, row: int) -> list[Request]:
    database.execute(f"UPDATE one SET v = v + 1 WHERE id = {row}")
    way.take()
    with _opened() as catalogs:
        assert pipeline.sync().changes == 1
    assert [name for name, _ in catalogs] == ["opened", "closed"]
    return way.take()


@contextmanager
def _opened() -> Iterator[list[tuple[str, Any]]]:
    """What happens to SQL catalogs within the block."""
    events: list[tuple[str, Any]] = []
    make, close = SqlPointers.__init__, SqlPointers.close

    def making(catalog: SqlPointers, lake: LakeSettings) -> None:
        make(catalog, lake)
        events.append(("opened", catalog))

    def closing(catalog: SqlPointers) -> None:
        close(catalog)
        events.append(("closed", catalog))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SqlPointers, "__init__", making)
        patched.setattr(SqlPointers, "close", closing)
        yield events


@pytest.mark.skipif(IN_S3 or IN_NESSIE or ON_REST, reason="it counts with a catalog in SQLite")
def test_a_sync_of_one_row(
    database: Database,
    object_store: LocalObjectStore,
    way: Forwarder,
    connect: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database.execute(
        "CREATE TABLE one (id int PRIMARY KEY, v int);"
        "INSERT INTO one SELECT g, 0 FROM generate_series(1, 9000) g"
    )
    file = pipeline_file(tmp_path, database, ["one"])
    moved_to(object_store, file)
    endpoint = json.dumps(f"http://127.0.0.1:{way.port}")
    file.write_text(file.read_text().replace(json.dumps(object_store.endpoint), endpoint))
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        rows = itertools.count(1)
        for mode, expected, chain in (
            (NEVER, EXPECTED, CHAIN),
            (ALWAYS, EXPECTED_DIRECTLY, CHAIN_DIRECTLY),
        ):
            monkeypatch.setenv(SWITCH, mode)
            for row in itertools.islice(rows, 2):
                _requests(way, pipeline, database, row)
            way.latency_seconds = 0.03  # longer than a busy machine takes to begin the next of a wave
            # A request that is made again says nothing, nor does a wave that a busy machine has torn apart.
            for row in itertools.islice(rows, 4):
                taken = _requests(way, pipeline, database, row)
                length = one_after_another(taken)
                if counted(taken) == expected and length <= chain:
                    break
            way.latency_seconds = 0.0
            assert counted(taken) == expected
            assert length <= chain
        assert_equal(database, pipeline, ["one"])
