"""One pipeline on one road: made, taken from sync to sync, and judged after each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog

from slotlake import Pipeline
from slotlake.infra.local.object_store import LocalObjectStore
from tests.conftest import Database
from tests.e2e.readers import duckdb_connection, s3_secret
from tests.roads import judge
from tests.roads.floats import lost_rows
from tests.roads.judge import Rows, difference
from tests.roads.kinds import ALL
from tests.roads.lake_files import LAST_UPDATED, ROW_ID, Json, LakeFiles, schema_of
from tests.roads.road import Road
from tests.roads.rules import faults

Held = Mapping[str, tuple[list[str], Rows]]
_NAMESPACE = "lk"
# Limits at which each row is read and written alone, as one of many megabytes is.
_EACH_ROW_IS_LARGE = {
    "direct.reading._AT_ONCE_BYTES_MAX": 0,
    "direct.rows.LARGE_ROW_BYTES": 0,
    "direct.rows.OLD_BYTES_MAX": 0,
    "direct.rows.PIECE_BYTES": 3000,
    "fold.batch._LARGE_BYTES": 0,
}


@dataclass
class Services:
    """What the roads lead through; each is asked for when it is first needed.

    Attributes:
        catalog_database: makes a database for a catalog; returns SQLAlchemy's URI.
        rest: the address of a REST catalog over a folder, or over the object store.
        connect: the address of a Spark Connect server.
        cluster: that of one whose executors are on other machines, and the variables that hold its token.
    """

    folder: Path
    store: Callable[[], LocalObjectStore]
    catalog_database: Callable[[], str]
    rest: Callable[[bool], str]
    connect: Callable[[], str]
    cluster: Callable[[], tuple[str, Mapping[str, str]]]


@dataclass
class Traveller:
    """A pipeline on its road.

    Attributes:
        wrong: what was found, in words.
        points: (position, main's snapshot per lake table, what the source held).
    """

    number: int
    road: Road
    tables: Sequence[str]
    database: Database
    services: Services
    wrong: list[str] = field(default_factory=list)
    points: list[tuple[int, dict[str, int], Held]] = field(default_factory=list)
    lineage: dict[tuple[str, int], dict[Any, tuple[bool | None, bool]]] = field(default_factory=dict)
    staged_directly: int = 0
    derived_directly: bool = False

    def __post_init__(self) -> None:
        self._folder = self.services.folder / f"{self.database.name}_{self.number}"
        self._folder.mkdir(parents=True)
        self.namespace = f"{_NAMESPACE}_{self.database.name}_{self.number}"
        self._uri = self._catalog_uri()
        self.file = self._file()
        self._late = self.road.copy == "over_syncs"
        self._steps = 0
        self._rows: dict[str, tuple[int, dict[Any, Any]]] = {}
        self._duckdb = duckdb_connection("avro", "iceberg")
        self.files = LakeFiles(self._place, self._duckdb)

    # The pipeline file.

    def _catalog_uri(self) -> str:
        kind = self.road.catalog
        if kind == "sqlite":
            return f"sqlite:///{self._folder}/lake.db"
        if kind == "postgresql":
            return self.services.catalog_database()
        return self.services.rest(self.road.storage == "s3")

    @property
    def _storage(self) -> dict[str, Any]:
        return self.services.store().storage if self.road.storage == "s3" else {}

    @property
    def _warehouse(self) -> str:
        if self.road.storage == "s3":
            return f"{self.services.store().warehouse}/{self.namespace}"
        return f"{self._folder}/warehouse"

    def _file(self) -> Path:
        road, name = self.road, f"r{self.number}"
        lake: dict[str, Any] = {
            "catalog": "lake", "uri": self._uri, "warehouse": self._warehouse, "namespace": self.namespace,
            "format": int(road.format),
        }  # fmt: skip
        if self._storage:
            lake["storage"] = self._storage
        if road.catalog in ("staged", "per_table"):
            lake |= {"staging": "local"} if road.catalog == "staged" else {"publish": "per_table"}
        source: dict[str, Any] = {
            "dsn": self.database.dsn, "publications": [f"{self.database.name}_{name}"],
            "slot": f"{self.database.name}_{name}", "bulk": road.stream == "bulk",
        }  # fmt: skip
        if road.stream == "test_decoding":
            source |= {"plugin": "test_decoding", "streaming": "off"}
        if road.stream in ("binary", "streamed"):
            source |= {"binary": True} if road.stream == "binary" else {"two_phase": True}
        if road.copy == "over_syncs":
            source |= {"copy_seconds_per_sync": 0.05, "copy_workers": 1}
        text: dict[str, Any] = {"name": name, "source": source, "lake": lake}
        if road.mode in ("history", "append"):
            text["mode"] = [road.mode]
        if road.mode == "marked":
            text["on_delete"] = "mark"
        if road.slices == "many":
            text["spark"] = {"memory_mb": 1}
        lines = [f"{key}: {json.dumps(value)}\n" for key, value in text.items()]
        settings = [f"  {table}: {{{ALL[table].settings}}}\n" for table in self.tables if ALL[table].settings]
        path = self._folder / f"{name}.yaml"
        path.write_text("".join(lines) + ("tables:\n" + "".join(settings) if settings else ""))
        return path

    # What it does.

    def begin(self, held: Held) -> None:
        """Make the pipeline, and judge its copy."""
        now = self.tables[:1] if self._late else self.tables
        made = f"CREATE PUBLICATION {self._publication} FOR TABLE {', '.join(now)}"
        self.database.execute(f"{made} WITH (publish_via_partition_root = true)")
        with self._open() as pipeline:
            aside = pipeline.init().set_aside
            self._expect_none(aside, "init")
        self._judge({name: held[name] for name in now}, "after init")

    def step(self, held: Held) -> None:
        """Take what the source did since, and judge."""
        self._steps += 1
        if self._late and self._steps == 1:
            self._join()
        if self.road.steps != "sync" and self._steps > 1:
            self._step_by_step()
        with self._open() as pipeline:
            if self.road.copy == "recovered" and self._steps == 1:
                self._lose_the_slot()
                pipeline.recover(carry_out=True)
            self._expect_none(pipeline.sync().set_aside, f"sync {self._steps}")
            if self._late and self._steps == 1:
                self._until_joined(pipeline)
            if self.road.copy == "backfilled" and self._steps == 1:
                for table in self.tables[:2]:
                    pipeline.backfill(f"public.{table}")
        self._judge({name: held[name] for name in self.tables}, f"after sync {self._steps}")

    def _step_by_step(self) -> None:
        """The steps of a batch, each in a process of its own; or a run that ends before it publishes."""
        with self._open() as pipeline:
            batch = pipeline.pull().batch
        if batch is None:
            return
        with self._open() as pipeline:
            pipeline.apply(batch)
        if self.road.steps == "tasks":
            with self._open() as pipeline:
                pipeline.publish(batch)
            with self._open() as pipeline:
                pipeline.confirm(batch)

    def end(self) -> None:
        """Judge every kept point, the rules of the metadata, and, on some roads, what `verify` says."""
        for number, (position, snapshots, held) in enumerate(self.points):
            for table, snapshot in snapshots.items():
                names, rows = held[table]
                metadata = self.metadata(table)
                if not any(s["snapshot-id"] == snapshot for s in metadata["snapshots"]):
                    self._say(table, f"the snapshot of point {number} is gone")
                    continue
                self._compare(table, names, rows, self._by_pyiceberg(table, snapshot), f"point {number}")
            self._judge_derived(position, held, number)
        for table in self.tables:
            for name in (table, *self._derived(table)):
                metadata = self.metadata(name)
                for each in faults(self.files, metadata):
                    self._say(name, each)
                if name != table:
                    self.derived_directly |= any(
                        "spark.app.id" not in s["summary"] for s in metadata["snapshots"]
                    )
        if self.number % 3 == 0:
            with self._open() as pipeline:
                if not pipeline.verify().equal:
                    self._say("verify", "the lake is not equal")

    @property
    def comparable_steps(self) -> range:
        """The steps after which rows have numbers as on other roads: nothing was copied again meanwhile."""
        first = 1 if self.road.copy == "whole" else 2
        return range(first, self._steps + 1)

    @property
    def _publication(self) -> str:
        return f"{self.database.name}_r{self.number}"

    def _join(self) -> None:
        if len(self.tables) > 1:
            self.database.execute(
                f"ALTER PUBLICATION {self._publication} ADD TABLE {', '.join(self.tables[1:])}"
            )

    def _until_joined(self, pipeline: Pipeline) -> None:
        for _ in range(60):
            states = {entry.table: entry.state for entry in pipeline.status().tables}
            if all(states.get(f"public.{table}") == "ready" for table in self.tables):
                return
            pipeline.sync()
        self._say("joining", f"not all tables joined: {states}")

    def _lose_the_slot(self) -> None:
        self.database.execute("SELECT pg_drop_replication_slot(%s)", [f"{self.database.name}_r{self.number}"])

    @contextmanager
    def _open(self) -> Iterator[Pipeline]:
        """The pipeline, with the switches that lead down its road."""
        road, remote = self.road, None
        with pytest.MonkeyPatch.context() as patch:
            if road.spark == "connect":
                remote = self.services.connect()
            if road.spark == "cluster":
                remote, variables = self.services.cluster()
                for name, value in variables.items():
                    patch.setenv(name, value)
            engine = road.engine_at(self._steps)
            patch.setenv("SLOTLAKE_DIRECT", {"direct": "usually", "merge": "never"}[engine])
            if road.slices == "many":
                patch.setattr("slotlake.spark.apply.changes._COPIES", 300)
            # On every second road a batch packs small files.
            patch.setattr("slotlake.spark.direct.packing.FILES_MIN", (12, 2)[self.number % 2])
            if road.rows == "large":
                for name, limit in _EACH_ROW_IS_LARGE.items():
                    patch.setattr(f"slotlake.spark.{name}", limit)
            if road.stream == "bulk":
                patch.setattr("slotlake.decoder.stream.bulk.BULK_MIN_BYTES", 0)
            if road.catalog == "per_table":
                patch.setattr("slotlake.spark.catalog.rest.catalog.RestPointers.together", False)
            if self._late:
                patch.setattr("slotlake.decoder.copy.parts.PART_BYTES", 8192)
            with Pipeline.open(self.file, remote=remote) as pipeline:
                yield pipeline

    # What it finds.

    def _say(self, table: str, what: str) -> None:
        self.wrong.append(f"{self.road} {table}: {what}")

    def _expect_none(self, aside: Mapping[str, str], when: str) -> None:
        for table, why in aside.items():
            if not (self._late and "several syncs" in why):
                self._say(table, f"set aside in {when}: {why}")

    def _judge(self, held: Held, when: str) -> None:
        snapshots = {}
        for table, (names, rows) in held.items():
            metadata = self.metadata(table)
            whole = self._by_duckdb(table)
            self._compare(table, names, rows, whole, when)
            scan = f"iceberg_scan('{self._location(table)}')"
            for each in lost_rows(self._duckdb, scan, whole, names):
                self._say(table, f"{when}: {each}")
            snapshots[table] = metadata["current-snapshot-id"]
            self._note_lineage(table, metadata, names)
        commits = self.metadata("commits")
        (main,) = (s for s in commits["snapshots"] if s["snapshot-id"] == commits["current-snapshot-id"])
        high, low = main["summary"]["slotlake.lsn"].split("/")
        self.points.append((int(high, 16) << 32 | int(low, 16), snapshots, held))

    def _compare(self, table: str, names: Sequence[str], rows: Rows, found: Any, when: str) -> None:
        if wrong := difference(rows, judge.rows_in(judge.live(found), names)):
            self._say(table, f"{when}: {wrong}")

    def _derived(self, table: str) -> tuple[str, ...]:
        suffix = {"history": "__history", "append": "__changes"}.get(self.road.mode)
        return (table + suffix,) if suffix else ()

    def _judge_derived(self, position: int, held: Held, number: int) -> None:
        for table, (names, rows) in held.items():
            if ALL[table].shifts:
                continue
            for name in self._derived(table):
                found = self._by_pyiceberg(name, None)
                if self.road.mode == "history":
                    made = judge.rows_in(judge.at_position(found, position), names)
                else:
                    made = judge.replayed(found, names, position)
                if wrong := difference(rows, made):
                    self._say(name, f"at point {number}: {wrong}")

    def _note_lineage(self, table: str, metadata: Json, names: Sequence[str]) -> None:
        """Per key: whether its row kept its number, and whether it was changed, since the point before."""
        main = next(s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"])
        self.staged_directly += self._steps > 0 and "spark.app.id" not in main["summary"]
        if self.road.format != "3" or not ALL[table].has_key:
            return
        columns = {str(f["id"]): f["name"] for f in schema_of(metadata)["fields"]}
        columns |= {str(ROW_ID): "#", str(LAST_UPDATED): "@"}
        now: dict[Any, Any] = {}
        for _, rows in self.files.live_rows(self.files.snapshot(metadata, main)):
            some = rows.select([c for c in rows.column_names if c in columns])
            some = judge.live(some.rename_columns([columns[c] for c in some.column_names]))
            keys = judge.tuples(some, [name for name in names if name in ALL[table].key])
            numbers = zip(some["#"].to_pylist(), some["@"].to_pylist(), strict=True)
            now |= dict(zip(keys, numbers, strict=True))
        number, before = self._rows.get(table, (0, {}))
        self._rows[table] = (main["sequence-number"], now)
        self.lineage[table, self._steps] = {
            key: (before[key][0] == row if key in before else None, changed > number)
            for key, (row, changed) in now.items()
        }

    def _place(self, location: str) -> Path:
        if location.startswith("s3://"):
            return self.services.store().folder / "objects" / location.removeprefix("s3://")
        return Path(location.removeprefix("file://").removeprefix("file:"))

    @cached_property
    def _catalog(self) -> Catalog:
        if self._uri.startswith("http"):
            return load_catalog("lake", type="rest", uri=self._uri, **self._properties)
        return load_catalog("lake", type="sql", uri=self._uri, warehouse=self._warehouse, **self._properties)

    @property
    def _properties(self) -> dict[str, str]:
        storage = self._storage
        if not storage:
            return {}
        return {
            "s3.endpoint": storage["endpoint"], "s3.region": storage["region"],
            "s3.access-key-id": storage["access_key"], "s3.secret-access-key": storage["secret_key"],
        }  # fmt: skip

    def _location(self, table: str) -> str:
        return str(self._catalog.load_table((self.namespace, table)).metadata_location)

    def metadata(self, table: str) -> Json:
        """The newest metadata of a table of its lake."""
        return self.files.metadata(self._location(table))

    def _by_duckdb(self, table: str) -> Any:
        location = self._location(table)
        if self._storage:
            self._with_httpfs()
        return self._duckdb.execute(f"SELECT * FROM iceberg_scan('{location}')").to_arrow_table()

    def _with_httpfs(self) -> None:
        if not hasattr(self, "_secret"):
            self._duckdb = duckdb_connection("httpfs", "avro", "iceberg")
            self.files._duckdb = self._duckdb
            self._duckdb.execute(s3_secret(self._storage))
            self._secret = True

    def _by_pyiceberg(self, table: str, snapshot: int | None) -> Any:
        return self._catalog.load_table((self.namespace, table)).scan(snapshot_id=snapshot).to_arrow()
