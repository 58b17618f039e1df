"""Batches that are staged directly, one after the other and without Spark: rows, their numbers, totals."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, IntegerType, NestedField, StringType

from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.direct import choice, packing
from slotlake.spark.direct.live import live_files
from slotlake.spark.direct.packing import pack_directly
from slotlake.spark.direct.positions import Places
from slotlake.spark.direct.reading import Reading
from slotlake.spark.direct.rows import field_id, fields_of, row_numbers
from slotlake.spark.direct.stage import stage_directly
from slotlake.spark.fold.batch import segment_folds
from slotlake.spark.lake import LakeSettings
from slotlake.spark.layout import Layout, Term
from slotlake.spark.merge.run import Work
from slotlake.spark.names import LakeName
from slotlake.spark.publish.commits import Point
from slotlake.spark.publish.swap import reset_stage
from slotlake.spark.storage.stores import canonical
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.layout import with_layout
from slotlake.spark.tables.manifests import format_of
from slotlake.spark.tables.metadata import MAIN, STAGE
from slotlake.spark.tables.schema import SCHEMA_PROPERTY, TableSchema
from tests.spark.lake_lab import UNCHANGED, Change, HandBatch, Row, delete, insert, relation, update

pytestmark = pytest.mark.fast
TABLE = relation("t", ["id", "k"], id="int4", k="text", v="text", m="numeric(10,2)")
NAME = LakeName("shop", "t")
FIELDS = Schema(
    NestedField(1, "id", IntegerType()),
    NestedField(2, "k", StringType()),
    NestedField(3, "v", StringType()),
    NestedField(4, "m", DecimalType(10, 2)),
    NestedField(5, "m__exact", StringType()),
)


def _no_spark() -> Any:
    raise AssertionError("Spark was asked for")


class Lake:
    """A lake with one table; a batch becomes its main at once."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.settings = LakeSettings(
            "lake", f"sqlite:///{folder}/catalog.db", f"file://{folder}/lake", "shop"
        )
        self._position = 0x1000
        properties = {SCHEMA_PROPERTY: TableSchema.of(TABLE).to_json()}
        with open_catalog(self.settings) as catalog:
            catalog.make_namespace("shop")
            location = f"file://{folder}/lake/t"
            catalog.iceberg.create_table(("shop", "t"), FIELDS, location, properties=properties)
            table = load_one(catalog, NAME)
            newest = {**table.metadata, "format-version": 3, "next-row-id": 0}
            catalog.move([catalog.prepared(table, with_layout(newest, layout))])

    def sync(self, changes: list[Change]) -> None:
        batch = HandBatch(self._position, self._position + 0x100, changes)
        self._position += 0x100
        point = Point("test", self._position, batch.name, batch.digest, "batch")
        with open_catalog(self.settings) as catalog:
            table = load_one(catalog, NAME)
        work = Work(_no_spark, self.settings, point, table, Path("nowhere"))
        schema = TableSchema.from_json(table.metadata["properties"][SCHEMA_PROPERTY]).with_exact(["m"])
        (part,) = segment_folds([(r, batch.relation_table(r)) for r in batch.relations])
        assert stage_directly(work, schema, part, "apply")
        with open_catalog(self.settings) as catalog:
            staged = load_one(catalog, NAME)
            number = catalog_metadata.ref(staged.metadata, STAGE)
            catalog.move([catalog.prepared(staged, catalog_metadata.with_ref(staged.metadata, MAIN, number))])

    def file_rows(self) -> list[int]:
        """How many rows each data file has, deleted ones too."""
        with open_catalog(self.settings) as catalog:
            metadata = load_one(catalog, NAME).metadata
        live = live_files(metadata, catalog_metadata.head(metadata))
        return [each.file.record_count for each in live.data.values()]

    def pack(self) -> bool:
        """Pack all data files, and begin `stage` anew, as the next batch does."""
        with open_catalog(self.settings) as catalog:
            table = load_one(catalog, NAME)
        live = live_files(table.metadata, catalog_metadata.head(table.metadata))
        packed = pack_directly(self.settings, table, list(map(canonical, live.data)))
        with open_catalog(self.settings) as catalog:
            reset_stage(catalog, [load_one(catalog, NAME)])
        return packed

    def rows(self) -> dict[tuple[str, str], tuple[Any, ...]]:
        """Values of live rows by key, with the number of each and of its last change; read by ourselves."""
        with open_catalog(self.settings) as catalog:
            metadata = load_one(catalog, NAME).metadata
            scanned = catalog.iceberg.load_table(("shop", "t")).scan().to_arrow()
        snapshot = catalog_metadata.head(metadata)
        live = live_files(metadata, snapshot)
        reading = Reading(live)
        reading.ahead(list(live.data))
        rows: dict[tuple[str, str], tuple[Any, ...]] = {}
        for location, file in live.data.items():
            at = np.setdiff1d(np.arange(file.file.record_count), reading.deleted(location))
            kinds = {field_id(f): f.type for f in fields_of(metadata)}
            columns = reading.columns(location, {**kinds, packing._LAST_UPDATED.field_id: pa.int64()})
            numbers = row_numbers(reading, Places((location,), np.zeros(len(at), np.int64), at)).to_pylist()
            *values, updated = (column.take(pa.array(at)).to_pylist() for column in columns.values())
            for number, changed, one in zip(numbers, updated, zip(*values, strict=True), strict=True):
                key = (str(one[0]), one[1])
                assert key not in rows
                exact = one[4] if one[4] is not None else None if one[3] is None else str(one[3])
                rows[key] = (one[2], exact, number, file.sequence_number if changed is None else changed)
        assert scanned.num_rows == len(rows)
        assert {(str(r["id"]), r["k"], r["v"]) for r in scanned.to_pylist()} == {
            (*k, v[0]) for k, v in rows.items()
        }
        assert len({row[2] for row in rows.values()}) == len(rows)
        assert max((row[2] for row in rows.values()), default=-1) < metadata["next-row-id"]
        totals = catalog_metadata.summary(snapshot)
        files = [each.file for each in live.data.values()]
        assert int(totals["total-data-files"]) == len(files)
        assert int(totals["total-records"]) == sum(file.record_count for file in files)
        assert int(totals["total-delete-files"]) == len(live.vectors)
        deleted = sum(vector.file.record_count for vector in live.vectors.values())
        assert int(totals["total-position-deletes"]) == deleted == int(totals["total-records"]) - len(rows)
        sizes = sum(each.size for each in (*live.data.values(), *live.vectors.values()))
        assert int(totals["total-files-size"]) == sizes
        assert format_of(metadata) == 3
        return rows


def changes_of(rng: random.Random, rows: dict[tuple[str, str], tuple[Any, Any]], steps: int) -> list[Change]:
    changes: list[Change] = []
    for number in range(steps):
        key = (str(rng.randrange(6)), rng.choice(["", "a", "ü" * 20, "z"]))
        v, m = f"v{number}", rng.choice(["1.00", "NaN", None, "-0.50"])
        there = rng.choice(list(rows)) if rows else None
        step = rng.choice(["insert", "insert", "update", "partial", "move", "delete"])
        if step == "insert" and key not in rows:
            changes.append(insert(TABLE, id=key[0], k=key[1], v=v, m=m))
            rows[key] = (v, m)
        elif there is not None and step == "delete":
            changes.append(delete(TABLE, id=there[0], k=there[1]))
            del rows[there]
        elif there is not None and step != "insert":
            old, to = None, there
            if step == "move" and key not in rows:
                old, to = {"id": there[0], "k": there[1]}, key
            shown: Row = {"id": to[0], "k": to[1], "v": v if step == "update" else UNCHANGED, "m": m}
            changes.append(update(TABLE, old, **shown))
            rows[to] = (v if step == "update" else rows[there][0], m)
            if to != there:
                del rows[there]
    return changes


@pytest.mark.parametrize("files_min", [2, 12])
@pytest.mark.parametrize("partition", [(), (Term("k"), Term("id", "bucket[2]"))])
def test_batch_after_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_min: int, partition: tuple[Term, ...]
) -> None:
    monkeypatch.setenv(choice.SWITCH, choice.ALWAYS)
    monkeypatch.setattr(packing, "FILES_MIN", files_min)
    rng = random.Random(files_min)
    lake = Lake(tmp_path, Layout(partition, ()))
    rows: dict[tuple[str, str], tuple[Any, Any]] = {}
    before: dict[tuple[str, str], tuple[Any, ...]] = {}
    for _ in range(8):
        unchanged = dict(rows)
        changes = changes_of(rng, rows, 5)
        if not changes:
            continue
        lake.sync(changes)
        after = lake.rows()
        assert {key: row[:2] for key, row in after.items()} == rows
        for key in before.keys() & after.keys():
            assert after[key][2] == before[key][2]
            if rows[key] == unchanged[key] and not any(_touches(change, key) for change in changes):
                assert after[key][3] == before[key][3]
        before = after


def test_what_is_too_large_for_a_batch_does_not_keep_smaller_files_from_being_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file for each batch came, until Spark packed forty of them, which took seconds."""
    monkeypatch.setenv(choice.SWITCH, choice.ALWAYS)
    monkeypatch.setattr(packing, "FILES_MIN", 2)
    monkeypatch.setattr(packing, "ROWS_MAX", 20)
    lake = Lake(tmp_path, Layout((), ()))
    for batch in range(24):
        lake.sync([insert(TABLE, id=str(batch * 3 + n), k="", v="v", m=None) for n in range(3)])
    assert len(lake.rows()) == 72
    assert max(lake.file_rows()) <= 20
    assert len(lake.file_rows()) <= 72 / 10 + 3


@pytest.mark.seconds
@pytest.mark.parametrize("partition", [(), (Term("k"),)])
def test_packed_without_spark_rows_and_numbers_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition: tuple[Term, ...]
) -> None:
    monkeypatch.setenv(choice.SWITCH, choice.ALWAYS)
    rng = random.Random(5)
    lake = Lake(tmp_path, Layout(partition, ()))
    rows: dict[tuple[str, str], tuple[Any, Any]] = {}
    worn = 0
    for number in range(1, 13):
        lake.sync(changes_of(rng, rows, 6))
        before, files = lake.rows(), lake.file_rows()
        if number % 3 == 0:
            assert lake.pack()
            assert lake.rows() == before
            assert sum(lake.file_rows()) == len(before) <= sum(files)
            worn += sum(files) - len(before)
            assert len(lake.file_rows()) == len({key[1] if partition else "" for key in rows})
    assert worn  # some of the packed files had deleted rows


def _touches(change: Change, key: tuple[str, str]) -> bool:
    return key in [(row.get("id"), row.get("k")) for row in (change.new, change.old or {})]
