"""A pipeline on a real Nessie: a REST server that makes tables of format 2, no branches and no tags."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import requests

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.abilities import Abilities, abilities_of
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.catalog.rest.published import METADATA_PROPERTY
from slotlake.spark.maintenance.integrity import WRITTEN, find_damage
from slotlake.spark.names import LakeName
from tests import storage
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file, source_rows
from tests.e2e.test_beside import mirrors, past
from tests.e2e.test_modes import MODES
from tests.spark.nessie_catalog import LocalNessie

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
]

SETUP = """
CREATE TABLE t (id int PRIMARY KEY, a text, b int);
INSERT INTO t SELECT g, 'a', g FROM generate_series(1, 9) g;
CREATE TABLE u (id int PRIMARY KEY, v text); INSERT INTO u SELECT g FROM generate_series(1, 9) g
"""


def _file(
    folder: Path, database: Database, nessie: LocalNessie, store: Any, lines: str = "", extra: str = ""
) -> Path:
    uri = nessie.branch(f"b{database.name}")
    file = pipeline_file(folder, database, ["t", "u"], extra=extra, uri=uri, name=f"n{database.name}")
    if not storage.IN_S3:
        storage.moved_to(store, file)
    file.write_text(file.read_text().replace("lake:\n", f"lake:\n{lines}", 1))
    return file


SERVED = "  staging: local\n  format: 2\n"


def _rows(database: Database) -> dict[str, Counter[Any]]:
    with database.connect() as connection:
        return {table: source_rows(connection, table)[1] for table in ("t", "u")}


def test_what_nessie_cannot_is_named_before_anything_is_made(
    session: Any, nessie: LocalNessie, object_store: Any, database: Database, tmp_path: Path
) -> None:
    database.execute(SETUP)
    file = _file(tmp_path, database, nessie, object_store)
    with (
        Pipeline.open(file) as pipeline,
        pytest.raises(LakeError, match="makes tables of format 2 when it is asked for format 3") as caught,
    ):
        pipeline.init()
    assert "lake.format: 2" in (caught.value.way_out or "")
    file.write_text(file.read_text().replace("lake:\n", "lake:\n  format: 2\n", 1))
    with Pipeline.open(file) as pipeline:
        with pytest.raises(LakeError, match="makes no branches") as caught:
            pipeline.init()
        assert "lake.staging: local" in (caught.value.way_out or "")
        found = abilities_of(pipeline.lake)
        assert found == Abilities(2, False, True, True, True, False, False, True)
        with open_catalog(pipeline.lake) as catalog:
            assert list(catalog.names()) == []
            left = [space[0] for space in catalog.iceberg.list_namespaces()]
    assert not [space for space in left if space.startswith("slotlake_probe")]
    slots = database.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
    assert slots == [(0,)]


def test_a_life_on_nessie(
    session: Any, nessie: LocalNessie, object_store: Any, database: Database, tmp_path: Path
) -> None:
    database.execute(SETUP)
    file = _file(tmp_path, database, nessie, object_store, SERVED, MODES)
    with Pipeline.open(file) as pipeline:
        lsn = pipeline.init().lsn
        points = {lsn: _rows(database)}
        for number in range(3):
            database.execute(
                f"UPDATE t SET b = {number} WHERE id < 4; DELETE FROM u WHERE id = {number + 1};"
                f"INSERT INTO u VALUES ({number + 100}, 'new')"
            )
            lsn = pipeline.sync().lsn
            points[lsn] = _rows(database)
        database.execute("ALTER TABLE t RENAME a TO z; UPDATE t SET z = 'zz' WHERE id = 8")
        database.execute("TRUNCATE u; INSERT INTO u VALUES (7, 'seven')")
        lsn = pipeline.sync().lsn
        points[lsn] = _rows(database)
        assert mirrors(pipeline, points[lsn]) == {}
        assert past(pipeline, points, ["t", "u"]) == {}
        assert pipeline.verify().equal
        pipeline.maintain()
        assert past(pipeline, points, ["t", "u"]) == {}
        _others_read_the_newest_point(pipeline, database)
        pipeline.backfill("t")
        assert pipeline.verify().equal
        database.execute("ALTER TABLE t ADD c numeric DEFAULT 2; UPDATE t SET c = 1.5, b = 77 WHERE id < 5")
        assert pipeline.sync().lsn
        assert mirrors(pipeline, _rows(database)) == {}
        _the_staging_catalog_is_lost(pipeline, database, file)
        _somebody_else_writes(pipeline, database)
        assert pipeline.verify().equal
        pipeline.drop(lake=True)
        with open_catalog(pipeline.lake) as catalog:
            assert list(catalog.names()) == []


def _table_of_server(pipeline: Any, table: str) -> dict[str, Any]:
    config = requests.get(f"{pipeline.lake.uri}/v1/config", timeout=30).json()
    address = f"{config['overrides']['uri']}v1/{config['defaults']['prefix']}"
    space = pipeline.lake.namespace
    answer = requests.get(f"{address}/namespaces/{space}/tables/{table}", timeout=30)
    content: dict[str, Any] = answer.json()
    return content


def _others_read_the_newest_point(pipeline: Any, database: Database) -> None:
    """What the server has is a table by itself: read by pyiceberg from its answer alone."""
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadataUtil

    from slotlake.spark.storage.file_io import StoreFileIO

    for table in ("t", "u"):
        content = _table_of_server(pipeline, table)
        metadata = content["metadata"]
        assert METADATA_PROPERTY in metadata["properties"]
        parsed = TableMetadataUtil.parse_obj(metadata)
        read = Table(("x", table), parsed, content["metadata-location"], StoreFileIO(), NoopCatalog("x"))
        rows = read.scan().to_arrow()
        assert rows.num_rows == database.execute(f"SELECT count(*) FROM {table}")[0][0]


def _the_staging_catalog_is_lost(pipeline: Any, database: Database, file: Path) -> None:
    """Between apply and publish, too: a batch is applied again, and nothing else."""
    database.execute("UPDATE t SET b = b + 1 WHERE id = 5")
    batch = pipeline.pull().batch
    pipeline.apply(batch)
    (found,) = file.parent.rglob("staging.db")
    with open_catalog(pipeline.lake) as catalog:
        before = catalog.pointer(LakeName(pipeline.lake.namespace, "t"))
        catalog._staging.place({}, list(catalog._staging.names()))  # type: ignore[attr-defined]
        assert catalog.pointer(LakeName(pipeline.lake.namespace, "t")) != before
    assert found.exists()
    with pytest.raises(LakeError, match="is not staged"):
        pipeline.publish(batch)
    pipeline.sync()
    assert mirrors(pipeline, _rows(database)) == {}


def _somebody_else_writes(pipeline: Any, database: Database) -> None:
    """A commit on the server that is none of ours is found, named, and taken back by `recover`."""
    head = _table_of_server(pipeline, "u")["metadata"]["snapshots"][0]
    snapshot = {**head, "snapshot-id": 12345, "sequence-number": head["sequence-number"] + 1}
    snapshot["summary"] = {"operation": "append"}
    with open_catalog(pipeline.lake) as catalog:
        catalog._server.commit(  # type: ignore[attr-defined]
            [
                {
                    "identifier": {"namespace": [pipeline.lake.namespace], "name": "u"},
                    "requirements": [],
                    "updates": [
                        {"action": "add-snapshot", "snapshot": snapshot},
                        {
                            "action": "set-snapshot-ref",
                            "ref-name": "main",
                            "type": "branch",
                            "snapshot-id": 12345,
                        },
                    ],
                }
            ]
        )
    (damage,) = find_damage(pipeline.lake, pipeline.name)
    assert (damage.kind, damage.table.table) == (WRITTEN, "u")
    pipeline.recover(carry_out=True)
    assert find_damage(pipeline.lake, pipeline.name) == []
    database.execute("UPDATE u SET v = 'later'")
    pipeline.sync()
    assert _table_of_server(pipeline, "u")["metadata"]["current-snapshot-id"] != 12345
    assert mirrors(pipeline, _rows(database)) == {}
