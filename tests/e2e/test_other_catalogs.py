"""Nessie, a Hive Metastore and AWS Glue: one life, killed in apply, publish and the swap of pinned views.

Tables with partitions, sorting, marked rows, a history, a change log, format 2; rows that move to other
partitions, keys that change, TRUNCATE, columns that change; then maintenance, backfill, replay, a lost slot,
and a position taken back.  The source is the oracle; slotlake reads the lake, and pyiceberg by the catalog.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import AlwaysTrue

from slotlake import Pipeline
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.spark.catalog import view_spaces
from slotlake.spark.catalog.base import load_all
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.names import LakeName
from slotlake.spark.publish.derived_tables import with_derived_names
from slotlake.spark.publish.rewind import rewind_position
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.replay.scratch import scratch_of
from tests import storage
from tests.catalogs import GLUE_URI, glue_lines
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file, source_rows
from tests.e2e.test_modes import Told, _told

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
]

SETUP = """
CREATE TABLE t (id int PRIMARY KEY, region text, ts timestamptz, v text);
CREATE TABLE u (id int PRIMARY KEY, v text); ALTER TABLE u REPLICA IDENTITY FULL;
INSERT INTO t SELECT g, 'r' || g % 3, timestamptz '2026-01-01Z' + g * interval '7 hours', 'v'
FROM generate_series(1, 60) g;
INSERT INTO u SELECT g, 'v' FROM generate_series(1, 40) g
"""
TABLES = """
  t: {partition_by: ["bucket(3, id)", region, day(ts)], sort_by: [id], mode: [history, append]}
  u: {on_delete: mark, partition_by: ["truncate(1, v)"]}
"""
# In Glue and Hive, tables are published one after another: t's two, t, u, and `commits` as the fifth.
BEFORE_COMMITS = "publish.between_tables:4"
FAILPOINTS = {
    "nessie": ["apply.mid_merge", "apply.between_modes", "publish.before_swap", "publish.mid_views:3"],
    "hive": ["apply.between_tables", "publish.between_tables:2", BEFORE_COMMITS, "publish.mid_views:3"],
    "glue": ["apply.mid_merge", "publish.between_tables", BEFORE_COMMITS, "publish.mid_views:3"],
}
AT_THE_CHANGE = {
    "nessie": "publish.after_swap",
    "hive": "publish.between_tables:3",
    "glue": "publish.between_tables:3",
}


ALWAYS: Any = AlwaysTrue()
# Of a process that has boto3 where this one has it: behind all other packages.
_SYNC = """
import sys
sys.path += sys.argv[2:]
from slotlake.infra.cli.main import main
sys.exit(main(["sync", sys.argv[1]]))
"""


@dataclass
class Life:
    """A pipeline on a catalog; what pyiceberg is told of that; the source at each point."""

    database: Database
    file: Path
    properties: dict[str, str]
    remote: str | None
    points: dict[str, Counter[Any]] = field(default_factory=dict)

    def work(self, number: int) -> None:
        """Rows move to other partitions, from and to NULL; keys change; rows leave, and one comes back."""
        self.database.execute(
            f"UPDATE t SET region = 'r' || (id + {number}) % 4 WHERE id % 5 = {number % 5};"
            f"UPDATE t SET region = NULL, ts = NULL WHERE id = {number + 20};"
            f"UPDATE t SET id = id + 1000 WHERE id = {number + 30}; DELETE FROM t WHERE id = {number + 40};"
            f"UPDATE u SET v = '{number}' WHERE id % 7 = {number % 7}; DELETE FROM u WHERE id = {number + 1};"
            f"UPDATE u SET id = id + 1000 WHERE id = {number + 20};"
            f"INSERT INTO u VALUES ({number}, 'again') ON CONFLICT DO NOTHING"
        )

    def source(self) -> dict[str, Counter[Any]]:
        with self.database.connect() as connection:
            return {table: source_rows(connection, table)[1] for table in ("t", "u")}

    def killed(self, failpoint: str) -> None:
        """A process of its own, by the warm Spark; that one has no keys of Glue, so there with its own."""
        environment = {**os.environ, "SLOTLAKE_FAILPOINT": failpoint}
        if self.remote is not None:
            environment["SLOTLAKE_SPARK_REMOTE"] = self.remote
        killed = subprocess.run(
            [
                sys.executable,
                "-P",
                "-c",
                _SYNC,
                str(self.file),
                *(path for path in sys.path if "moto" in path),
            ],
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL, (failpoint, killed.stdout, killed.stderr)
        if "hive" in self.properties["type"]:
            _end_locks(self.properties["uri"])

    def equal(self, pipeline: Any, when: str) -> None:
        """By slotlake, and by pyiceberg from what the catalog says; the pinned views too."""
        expected = self.source()
        self.points[format_lsn(pipeline.position())] = expected["t"]
        seen = {"t": Counter(pipeline.rows("t"))}
        seen["u"] = Counter(
            tuple(row) for row in pipeline.query("SELECT id, v FROM u WHERE NOT _is_deleted").rows
        )
        assert seen == expected, when
        by_pyiceberg = self.read(pipeline.lake.namespace)
        assert by_pyiceberg == self.typed(), when
        views = pipeline.status().views
        at = f"{pipeline.lake.namespace}__at"
        assert views[at] == pipeline.status().last_consistent_lsn, when
        assert self.read(at) == by_pyiceberg, when
        stays = view_spaces.point_namespace(pipeline.lake.namespace, pipeline.position())
        if stays in views:
            assert self.read(stays) == by_pyiceberg, when

    def typed(self) -> dict[str, Counter[Any]]:
        rows = {table: Counter(self.database.execute(f"SELECT * FROM {table}")) for table in ("t", "u")}
        return {**rows, "t__history": rows["t"]}

    def read(self, namespace: str) -> dict[str, Counter[Any]]:
        """What another reader sees of the newest state of each table."""
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("other", **self.properties)
        chosen = {"t": ALWAYS, "u": "_is_deleted = false", "t__history": "is_open = true"}
        read: dict[str, Counter[Any]] = {}
        for table, condition in chosen.items():
            columns = self.columns("t" if table.startswith("t") else table)
            loaded = catalog.load_table((namespace, table))
            scan = loaded.scan(row_filter=condition, selected_fields=tuple(columns))
            read[table] = Counter(tuple(row[c] for c in columns) for row in scan.to_arrow().to_pylist())
        return read

    def columns(self, table: str) -> list[str]:
        query = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
        query += " AND NOT attisdropped ORDER BY attnum"
        return [str(name) for (name,) in self.database.execute(query, [table])]

    def past(self, pipeline: Any) -> None:
        """The history and the change log tell each point of the source."""
        told: Told = _told(pipeline, pipeline.lake, "t")
        for lsn, expected in self.points.items():
            assert told.at(parse_lsn(lsn)) == expected, lsn
            assert told.replayed(parse_lsn(lsn)) == expected, lsn


def _end_locks(uri: str) -> None:
    """What hive.txn.timeout does after five minutes, at once: a killed process leaves its lock."""
    from hive_metastore.ttypes import ShowLocksRequest, UnlockRequest
    from pyiceberg.catalog.hive import _HiveClient

    with _HiveClient(uri) as client:
        for lock in client.show_locks(ShowLocksRequest()).locks:
            client.unlock(UnlockRequest(lock.lockid))


@pytest.fixture(params=["nessie", "hive", "glue"])
def life(
    request: pytest.FixtureRequest, database: Database, session: Any, tmp_path: Path
) -> tuple[str, Life]:
    where, store = request.param, request.getfixturevalue("object_store")
    properties = {"type": "rest" if where == "nessie" else where}
    lines, uri, remote = "  publish: per_table\n", GLUE_URI, None
    if where == "glue":
        lines = glue_lines(request)
        properties |= {"glue.endpoint": request.getfixturevalue("glue"), "glue.region": "eu-central-1"}
    else:
        remote = request.getfixturevalue("connect")
        server = request.getfixturevalue(where)
        uri = properties["uri"] = server.branch(f"o{database.name}") if where == "nessie" else server
    if where == "nessie":
        lines = "  staging: local\n"
    lines += "  views: true\n" + ("" if where == "glue" else "  format: 2\n")
    tables = TABLES.replace("mode:", "format: 2, mode:") if where == "glue" else TABLES
    file = pipeline_file(tmp_path, database, [], extra=tables.lstrip("\n"), uri=uri, name=f"o{database.name}")
    file.write_text(file.read_text().replace("lake:\n", f"lake:\n{lines}", 1))
    if where != "hive":
        if not storage.IN_S3:
            storage.moved_to(store, file)
        given = store.storage
        properties |= {"s3.endpoint": given["endpoint"], "s3.region": given.get("region", "us-east-1")}
        properties |= {"s3.access-key-id": given["access_key"], "s3.secret-access-key": given["secret_key"]}
    database.execute(SETUP)
    return where, Life(database, file, properties, remote)


def test_a_life_with_kills(life: tuple[str, Life], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_spaces, "SECONDS_APART", 0.0)
    where, it = life
    with Pipeline.open(it.file) as pipeline:
        first = pipeline.init().lsn
        it.equal(pipeline, "init")
        for number, failpoint in enumerate(FAILPOINTS[where]):
            _killed_once(it, pipeline, number, failpoint)
        it.past(pipeline)
        assert _formats(pipeline) == {2}
        gone = {str(row[0]) for row in pipeline.query("SELECT id FROM u WHERE _is_deleted").rows}
        assert gone >= {"20", "21"}
        assert pipeline.verify().equal
        _columns_change(it, pipeline, AT_THE_CHANGE[where])
        pipeline.maintain()
        pipeline.backfill("t")
        it.equal(pipeline, "maintain and backfill")
        assert pipeline.verify().equal
        namespace = f"again_{it.database.name}"
        pipeline.replay(namespace, start=first, transactions=3)
        again = ReadPoint.latest(scratch_of(pipeline.lake, namespace))
        for table in ("t", "u"):
            assert Counter(again.rows(table)) == Counter(pipeline.rows(table)), table
        _the_slot_is_lost(it, pipeline, where)
        _taken_back(it, pipeline)
        pipeline.drop(lake=True)
        assert pipeline.status().state == "not initialised"


def _killed_once(it: Life, pipeline: Any, number: int, failpoint: str) -> None:
    """Who reads the newest point sees the one before or this one, whole; the next sync mends."""
    before, position = it.source(), pipeline.position()
    it.work(number)
    during = it.source()
    it.killed(failpoint)
    published = failpoint.startswith(("publish.after_swap", "publish.mid_views"))
    assert (pipeline.position() != position) == published, failpoint
    assert Counter(pipeline.rows("t")) == (during if published else before)["t"], failpoint
    it.work(number + 10)
    pipeline.sync()
    it.equal(pipeline, failpoint)
    assert pipeline.recover().plan == []


def _columns_change(it: Life, pipeline: Any, failpoint: str) -> None:
    """Together with a TRUNCATE, a changed key, and rows after it."""
    position = pipeline.position()
    it.database.execute(
        "ALTER TABLE t RENAME v TO z; ALTER TABLE t ADD c int DEFAULT 7; UPDATE t SET c = 8 WHERE id < 10;"
        "TRUNCATE u; INSERT INTO u VALUES (1, 'after'), (2, 'after'); UPDATE u SET id = 3 WHERE id = 2;"
        "UPDATE t SET id = -id, region = 'moved' WHERE id % 9 = 0"
    )
    it.killed(failpoint)
    assert (pipeline.position() != position) == (failpoint == "publish.after_swap")
    it.database.execute("UPDATE t SET z = 'later' WHERE id % 4 = 0; DELETE FROM u WHERE id = 3")
    it.points.clear()
    pipeline.sync()
    it.equal(pipeline, "columns that change")
    it.past(pipeline)


def _the_slot_is_lost(it: Life, pipeline: Any, where: str) -> None:
    """While a publication is half done, where there is such a thing; the views follow."""
    if where != "nessie":
        it.work(7)
        it.killed("publish.between_tables:2")
    it.database.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.source.slot])
    it.work(8)
    assert pipeline.recover(carry_out=True).carried_out
    it.points.clear()
    it.equal(pipeline, "recover")
    it.work(9)
    pipeline.sync()
    it.equal(pipeline, "after recover")
    assert pipeline.verify().equal


def _taken_back(it: Life, pipeline: Any) -> None:
    """The lake's position goes down; no view is of a point that is no more, none shows other rows."""
    rows = it.read(pipeline.lake.namespace)
    lower = pipeline.position() - 8
    rewind_position(pipeline.lake, pipeline.name, lower)
    assert pipeline.position() == lower
    assert it.read(pipeline.lake.namespace) == rows
    at = f"{pipeline.lake.namespace}__at"
    views = pipeline.status().views
    assert views[at] == pipeline.status().last_consistent_lsn
    assert it.read(at) == rows
    assert [lsn for lsn in views.values() if lsn is None or parse_lsn(lsn) > lower] == []


def _formats(pipeline: Any) -> set[int]:
    own = LakeName(pipeline.lake.namespace, "t")
    with open_catalog(pipeline.lake) as catalog:
        names = with_derived_names([own])
        return {int(table.metadata["format-version"]) for table in load_all(catalog, names).values()}
