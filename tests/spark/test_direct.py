"""What is staged directly is what the MERGE makes of the same batch: rows, their numbers, and conflicts."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from slotlake.decoder.errors import ApplyError, LakeError
from slotlake.spark.catalog.base import Catalog, load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.direct import choice, reading, snapshot
from slotlake.spark.direct import rows as direct_rows
from slotlake.spark.fold import batch
from slotlake.spark.fold.conflicts import OnConflict
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.expiry import Grace
from slotlake.spark.maintenance.plan import Care
from slotlake.spark.maintenance.rewrite import maintain_table
from slotlake.spark.names import LakeName
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.deletion_vectors import puffin_of, vectors
from tests.spark.lake_lab import (
    COMMIT,
    PIPELINE,
    UNCHANGED,
    Change,
    HandBatch,
    Lab,
    Row,
    delete,
    insert,
    relation,
    truncate,
    update,
)
from tests.storage import lake_in

VALUES = {
    "int4": ["-2147483648", "0", "7"],
    "text": ["", "a" * 40, "a" * 40 + "b", "größe 😀", "it's `q`"],
    "numeric": ["1.0", "1.00", "NaN", "-5", "123456789012345678901234567890.5"],
    "numeric(10,2)": ["0.00", "NaN", "-99999999.99", "1.00"],
    "float8": ["NaN", "0", "-0", "-1.5", "1e+300"],
    "date": ["0001-01-01", "2024-02-29", "infinity"],
    "timestamptz": ["2024-05-01 10:00:00.1+00", "infinity", "0044-03-15 00:00:00+00 BC"],
    "timestamp": ["1969-12-31 23:59:59.999999", "-infinity"],
    "bytea": ["\\x", "\\x00ff", "\\xff"],
    "uuid": [f"{i:08x}-0000-0000-0000-000000000000" for i in (1, 0xFFFFFFFF)],
    "bool": ["f", "t"],
}

TRANSACTIONS_OF = HandBatch.transaction_table
ALWAYS, NEVER = choice.ALWAYS, choice.NEVER


@contextmanager
def staged_by(mode: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(choice.SWITCH, mode)
        yield


class Two:
    """Two lakes that get the same batches: one directly, one by the MERGE."""

    def __init__(self, session: Any, folder: Path) -> None:
        self.labs = {}
        for mode in (choice.ALWAYS, choice.NEVER):
            place = folder / mode
            place.mkdir()
            uri, warehouse = f"sqlite:///{place}/catalog.db", f"file://{place}/warehouse"
            self.labs[mode] = Lab.on(session, lake_in(place, LakeSettings("lake", uri, warehouse, "shop")))

    def init(self, table: Any, rows: Sequence[Row], *modes: str) -> None:
        for lab in self.labs.values():
            lab.init({table: rows}, modes={f"public.{table.table}": modes})

    def sync(self, *changes: Change, choice: OnConflict = "apply", mode: str = ALWAYS) -> dict[str, int]:
        """``mode``: of the lake that is not for the MERGE."""
        conflicts = []
        for lab, how in zip(self.labs.values(), (mode, NEVER), strict=True):
            with staged_by(how):
                conflicts.append(lab.conflicts(*changes, choice=choice))
        assert conflicts[0] == conflicts[1]
        return conflicts[0]

    def rows(self, table: str) -> list[tuple[str | None, ...]]:
        direct, merged = (lab.rows(table) for lab in self.labs.values())
        assert direct == merged
        assert by_pyiceberg(self.labs[choice.ALWAYS], table) == len(direct)
        return direct

    def logged(self, table: str) -> list[str]:
        """All changes of the change log, each as JSON, in their order."""
        log = f"lake.shop.{table}__changes"
        query = f"SELECT to_json(struct(*)) FROM {log} WHERE seq > 0 ORDER BY commit_lsn, seq"
        direct, merged = ([row[0] for row in lab.session.sql(query).collect()] for lab in self.labs.values())
        assert direct == merged
        return direct

    def versions(self, table: str) -> list[str]:
        """All versions of the history, each as JSON."""
        began = "CASE WHEN valid_from_lsn > 4096 THEN valid_from_time END AS began"  # not that of the copy
        query = f"SELECT to_json(struct(* EXCEPT (valid_from_time), {began})) FROM lake.shop.{table}__history"
        found = [sorted(row[0] for row in lab.session.sql(query).collect()) for lab in self.labs.values()]
        assert found[0] == found[1]
        return found[0]

    def numbers(self, table: Any) -> list[dict[Any, tuple[int, int]]]:
        """Of both lakes: for each key the number of its row, and of the snapshot that changed it last."""
        names = ", ".join(f"CAST({name} AS string)" for name in table.key)
        exact = [f"{c.name}__exact" for c in table.columns if c.name in table.key]
        found = []
        for lab in self.labs.values():
            fields = {f.name for f in lab.session.table(f"lake.shop.{table.table}").schema}
            more = "".join(f", {name}" for name in exact if name in fields)
            query = (
                f"SELECT {names}{more}, _row_id, _last_updated_sequence_number FROM lake.shop.{table.table}"
            )
            rows = lab.session.sql(query).collect()
            found.append({tuple(row)[:-2]: (row[-2], row[-1]) for row in rows})
            assert len({row[-2] for row in rows}) == len(rows), "two rows have the same number"
        return found


@pytest.fixture
def two(session: Any, tmp_path: Path) -> Two:
    return Two(session, tmp_path)


@pytest.fixture
def rows_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """All limits are so low that each row is a large one: it is read and written alone."""
    monkeypatch.setattr(reading, "_AT_ONCE_BYTES_MAX", 0)
    monkeypatch.setattr(direct_rows, "LARGE_ROW_BYTES", 0)
    monkeypatch.setattr(direct_rows, "OLD_BYTES_MAX", 0)
    monkeypatch.setattr(direct_rows, "PIECE_BYTES", 30)
    monkeypatch.setattr(batch, "_LARGE_BYTES", 0)


def head(lab: Lab, table: str) -> dict[str, str]:
    with open_catalog(lab.lake) as catalog:
        metadata = load_one(catalog, LakeName("shop", table)).metadata
    return catalog_metadata.summary(catalog_metadata.head(metadata))


def by_pyiceberg(lab: Lab, table: str) -> int:
    with open_catalog(lab.lake) as catalog:
        return int(catalog.iceberg.load_table(("shop", table)).scan().to_arrow().num_rows)


@pytest.mark.parametrize("slice_bytes", [1 << 30, 2_000])
@pytest.mark.parametrize("rows_are", ["large", "small"])
def test_rows_without_a_key_are_named_by_all_values(
    two: Two, rows_are: str, slice_bytes: int, request: pytest.FixtureRequest
) -> None:
    if rows_are == "large":
        request.getfixturevalue("rows_are_large")
    bag = relation("bag", [], "f", **NAMES_OF_BAG)
    direct = two.labs[choice.ALWAYS]
    direct.lake = replace(direct.lake, slice_bytes=slice_bytes)
    values = {name: [None, *VALUES[kind]] for name, kind in NAMES_OF_BAG.items()}
    rng = random.Random(slice_bytes)
    rows: list[Row] = [{name: rng.choice(some) for name, some in values.items()} for _ in range(4)]
    rows += [*rows, {**rows[0], "m": "NaN", "at": "infinity"}]
    two.init(bag, rows)
    for _ in range(2):
        changes = []
        for _ in range(12):
            new = rng.choice([*rows, {name: rng.choice(some) for name, some in values.items()}])
            old = rows.pop(rng.randrange(len(rows))) if rng.random() < 0.6 else None
            kept = old is None or rng.random() < 0.6
            changes.append(
                insert(bag, **new) if old is None else update(bag, old, **new) if kept else delete(bag, **old)
            )
            rows += [new] if kept else []
        assert two.sync(*changes) == {}
        expected = sorted((tuple(row[c.name] for c in bag.columns) for row in rows), key=repr)
        assert two.rows("bag") == expected
    gone = dict.fromkeys(values)
    missing = {**gone, "v": "12345"}
    met = two.sync(delete(bag, **missing), update(bag, missing, **gone), insert(bag, **rows[0]))
    assert met == {"delete_missing": 1, "update_missing": 1}
    two.rows("bag")


NAMES_OF_BAG = {
    "v": "int4",
    "t": "text",
    "b": "bytea",
    "m": "numeric(10,2)",
    "at": "timestamptz",
    "f": "float8",
}


ORDERS = relation("orders", ["id"], id="int8", note="text", total="numeric(10,2)")
EVENTS = relation("events", [], "n", what="text", at="timestamptz")


def order(number: int, note: str | None = "x", total: str | None = "1.00") -> Row:
    return {"id": str(number), "note": note, "total": total}


def test_conflicts_meet_the_same(two: Two) -> None:
    two.init(ORDERS, [order(1), order(2), order(3)])
    met = two.sync(
        insert(ORDERS, **order(1, "again")),
        update(ORDERS, **order(9, "whole")),
        update(ORDERS, id="8", note=UNCHANGED, total="2.00"),
        update(ORDERS, {"id": "7"}, id="2", note=UNCHANGED, total="2.00"),
        delete(ORDERS, id="6"),
    )
    assert met == {"insert_exists": 1, "update_missing": 3, "delete_missing": 1}
    first = ("1", "again", "1.00")
    assert two.rows("orders") == [first, ("2", "x", "1.00"), ("3", "x", "1.00"), ("9", "whole", "1.00")]
    skipped = two.sync(insert(ORDERS, **order(1, "skipped")), update(ORDERS, **order(3, "y")), choice="skip")
    assert skipped == {"insert_exists": 1}
    assert two.rows("orders") == [first, ("2", "x", "1.00"), ("3", "y", "1.00"), ("9", "whole", "1.00")]
    with pytest.raises(ApplyError, match="insert_exists 1"), staged_by(choice.ALWAYS):
        lab = two.labs[choice.ALWAYS]
        lab.apply(lab.batch(insert(ORDERS, **order(1))), "fail")


def test_a_row_that_changes_again_and_again_opens_no_more_files(two: Two) -> None:
    two.init(ORDERS, [order(1), order(2)])
    lab = two.labs[choice.ALWAYS]
    with staged_by(choice.ALWAYS):
        for number in range(4):
            lab.sync(update(ORDERS, **order(1, f"{number}")))
    totals = head(lab, "orders")
    assert (totals["total-data-files"], totals["total-delete-files"]) == ("2", "1")
    assert (totals["total-records"], totals["total-position-deletes"]) == ("3", "1")
    assert lab.rows("orders") == [("1", "3", "1.00"), ("2", "x", "1.00")]
    assert lab.session.sql("SELECT note FROM lake.shop.orders WHERE id = 1").collect() == [("3",)]


@pytest.mark.parametrize(("rows_are", "slice_bytes"), [("large", 2_000), ("small", 1 << 30)])
def test_a_change_log_has_the_same_rows(
    two: Two, rows_are: str, slice_bytes: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rows_are == "large":
        request.getfixturevalue("rows_are_large")
    monkeypatch.setattr(HandBatch, "transaction_table", _over_days)
    monkeypatch.setattr(snapshot, "_SHORT_MANIFESTS_MAX", 3)
    lab = two.labs[choice.ALWAYS]
    lab.lake = replace(lab.lake, slice_bytes=slice_bytes)
    table = relation("all", ["k"], k="int8", **NAMES_OF_BAG, n="numeric")
    values = {name: [None, *VALUES[kind]] for name, kind in {**NAMES_OF_BAG, "n": "numeric"}.items()}
    rng = random.Random(slice_bytes)

    def row(key: int) -> Row:
        return {"k": str(key), **{name: rng.choice(some) for name, some in values.items()}}

    two.init(table, [row(1), {**row(2), "m": "NaN", "n": "NaN", "at": "infinity"}], "append")
    for number in range(5):
        news = [row(10 * number + each) for each in range(10, 14)]
        changes = [insert(table, **new) for new in news]
        changes += [COMMIT, update(table, **{**row(10 * number + 10), "t": UNCHANGED, "n": UNCHANGED})]
        changes += [update(table, {"k": str(10 * number + 11)}, **{**row(-number), "b": UNCHANGED}), COMMIT]
        changes += [delete(table, k=str(10 * number + 12)), COMMIT, truncate(table)]
        two.sync(*changes)
        assert len(two.logged("all")) == 8 * (number + 1)
    staged = head(lab, "all__changes")
    assert "spark.app.id" not in staged
    assert staged["total-records"] == "43"
    numbered = lab.session.sql(
        "SELECT count(*), count(DISTINCT _row_id) FROM lake.shop.all__changes"
    ).collect()
    assert [tuple(each) for each in numbered] == [(43, 43)]
    manifests = lab.session.sql("SELECT * FROM lake.shop.all__changes.manifests").collect()
    assert len(manifests) <= 4, "short ones became one"


@pytest.mark.parametrize(("rows_are", "slice_bytes"), [("large", 2_000), ("small", 1 << 30)])
@pytest.mark.parametrize("has_key", [True, False])
def test_a_history_has_the_same_versions(
    two: Two, rows_are: str, slice_bytes: int, has_key: bool, request: pytest.FixtureRequest
) -> None:
    if rows_are == "large":
        request.getfixturevalue("rows_are_large")
    lab = two.labs[choice.ALWAYS]
    lab.lake = replace(lab.lake, slice_bytes=slice_bytes)
    named = (["k"], "d") if has_key else ([], "f")
    table = relation("all", *named, k="numeric(38,0)", **NAMES_OF_BAG, n="numeric")
    values = {name: [None, *VALUES[kind]] for name, kind in {**NAMES_OF_BAG, "n": "numeric"}.items()}
    rng, rows = random.Random(slice_bytes), dict[str, Row]()

    def row(key: str) -> Row:
        return {"k": key, **{name: rng.choice(some) for name, some in values.items()}}

    def changed(key: str) -> Change:
        """A change of the row with a key: any that the source could send."""
        before = rows.pop(key, None)
        if before is None:
            rows[key] = row(key)
            return insert(table, **rows[key])
        old = {"k": key} if has_key else before
        if rng.random() < 0.3:
            return delete(table, **old)
        free = [each for each in KEYS if each not in rows]
        moved = rng.choice(free) if rng.random() < 0.4 else key
        after = {**row(moved)} | {name: before[name] for name in ("t", "m") if rng.random() < 0.5}
        rows[moved] = after
        unsent = {name: UNCHANGED for name in ("t", "m") if after[name] == before[name]} if has_key else {}
        return update(table, old if moved != key or not has_key else None, **{**after, **unsent})

    rows |= {key: row(key) for key in KEYS[:3]}
    rows[KEYS[0]] = {**rows[KEYS[0]], "m": "NaN", "n": "NaN", "at": "infinity"}
    twins = [] if has_key else [*rows.values()]
    two.init(table, [*rows.values(), *twins], "history")
    for _ in range(3):
        changes = [changed(rng.choice(KEYS)) for _ in range(10)]
        two.sync(*(each for i, one in enumerate(changes) for each in ((COMMIT, one) if i % 2 else (one,))))
        versions, open_versions = two.versions("all"), len(rows) + len(twins)
        assert sum('"is_open":true' in version for version in versions) == open_versions
    assert "spark.app.id" not in head(lab, "all__history")
    two.sync(truncate(table), insert(table, **row(KEYS[0])), mode=choice.USUALLY)
    assert sum('"is_open":true' in version for version in two.versions("all")) == 1
    numbers = lab.session.sql(
        "SELECT count(*), count(DISTINCT _row_id) FROM lake.shop.all__history"
    ).collect()
    assert numbers[0][0] == numbers[0][1]


KEYS = ["-" + "9" * 38, "-1", "0", "7", "9" * 38]


def _over_days(batch: HandBatch) -> pa.Table:
    """Each transaction a day after the one before."""
    table = TRANSACTIONS_OF(batch)
    days = pc.multiply(pa.array(range(table.num_rows)), pa.scalar(86_400_000_000)).cast(pa.duration("us"))
    i = table.schema.get_field_index("commit_time")
    return table.set_column(i, table.schema.field(i), pc.add(table["commit_time"], days))


def test_the_clock_was_set_back(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's clock was two hours ahead when a batch was staged; Spark goes by the right clock."""
    now, lab = time.time, two.labs[choice.ALWAYS]

    def sync_ahead(note: str) -> None:
        with monkeypatch.context() as ahead, staged_by(choice.ALWAYS):
            ahead.setattr(time, "time", lambda: now() + 7200)
            lab.sync(update(ORDERS, **order(1, note)))

    two.init(ORDERS, [order(1), order(2)], "append")
    sync_ahead("ahead")
    with monkeypatch.context() as patch, staged_by(choice.NEVER):
        patch.setattr(Catalog, "in_present", lambda _, metadata: metadata)  # as where a server writes it
        with pytest.raises(LakeError, match="later than the time by Spark's clock"):
            lab.apply(lab.batch(update(ORDERS, **order(2, "right"))))
    with staged_by(choice.NEVER):
        lab.sync(update(ORDERS, **order(2, "right")))
    assert "spark.app.id" in head(lab, "orders")
    assert lab.rows("orders") == [("1", "ahead", "1.00"), ("2", "right", "1.00")]
    sync_ahead("again")
    for name in ("orders", "orders__changes", "commits"):
        table = LakeName("shop", name)
        maintain_table(lambda: lab.session, lab.lake, table, PIPELINE, Care(Grace(0, 3600)))
        with open_catalog(lab.lake) as catalog:
            assert load_one(catalog, table).metadata["last-updated-ms"] < (now() + 60) * 1000
    assert lab.rows("orders") == [("1", "again", "1.00"), ("2", "right", "1.00")]


def test_rows_without_a_key_are_appended(two: Two) -> None:
    two.init(EVENTS, [{"what": "a", "at": "infinity"}], "history", "append")
    two.sync(*(insert(EVENTS, what=what, at="2024-05-01 10:00:00+00") for what in "aab"))
    assert [row[0] for row in two.rows("events")] == ["a", "a", "a", "b"]
    assert head(two.labs[choice.ALWAYS], "events")["operation"] == "append"
    assert (len(two.versions("events")), len(two.logged("events"))) == (4, 3)


def test_what_is_for_spark(two: Two) -> None:
    """What does not suit is an error only where a test asks for one."""
    table = relation("docs", ["id"], id="int4", what="text")
    two.init(table, [{"id": "1", "what": "a"}])
    lab = two.labs[choice.ALWAYS]
    lab.session.sql("ALTER TABLE lake.shop.docs SET TBLPROPERTIES ('write.merge.mode' = 'copy-on-write')")
    batch = lab.batch(update(table, id="1", what="b"))
    with staged_by(choice.ALWAYS), pytest.raises(LakeError, match="written in an unusual way"):
        lab.apply(batch)
    with staged_by(choice.USUALLY):
        lab.apply(batch)
    lab.publish(batch)
    assert lab.rows("docs") == [("1", "b")]


@pytest.mark.fast
@pytest.mark.parametrize("count", [1, 5, 70_000])
def test_vectors_are_read_as_they_were_written(tmp_path: Path, count: int) -> None:
    rng = np.random.default_rng(count)
    first_of_each, upper = np.arange(3) << 32, rng.integers(0, 3, count) << 32
    positions = {
        "s3://lake/a.parquet": np.union1d(first_of_each, upper + rng.integers(0, 200_000, count)),
        "s3://lake/\u00fc.parquet": np.arange(count, dtype=np.int64),
    }
    content, places = puffin_of(positions, "a test")
    file = tmp_path / "vectors.puffin"
    file.write_bytes(content)
    read = vectors(f"file://{file}", positions)
    assert {name: rows.tolist() for name, rows in read.items()} == {
        k: v.tolist() for k, v in positions.items()
    }
    for offset, size in places.values():
        blob = content[offset : offset + size]
        assert int.from_bytes(blob[:4], "big") == size - 8
        assert blob[4:8].hex() == "d1d33964"
        assert int.from_bytes(blob[-4:], "big") == zlib.crc32(blob[4:-4])
