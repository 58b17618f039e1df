"""A pipeline on a REST catalog: what is beside mirrors, columns that change, tables published one by one."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.lsn import parse_lsn
from slotlake.spark.catalog.rest.catalog import RestPointers
from slotlake.spark.catalog.tags import tag
from slotlake.spark.direct.choice import NEVER, SWITCH
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.replay.scratch import scratch_of
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file, source_rows
from tests.e2e.readers import DuckFiles, PyIceberg, Rows, pyiceberg_catalog, rows_in
from tests.e2e.test_beside import mirrors, past
from tests.e2e.test_modes import MODES

pytestmark = pytest.mark.timeout(600)

SETUP = """
CREATE TABLE t (id int PRIMARY KEY, a text, b int);
INSERT INTO t SELECT g, 'a', g FROM generate_series(1, 9) g;
CREATE TABLE u (id int PRIMARY KEY, v text); INSERT INTO u SELECT g FROM generate_series(1, 9) g
"""
# Behind which of seven: what is beside `t`, `t`, what is beside `u`, `u`; `commits` is the last.
PLACES = range(1, 7) if os.environ.get("SLOTLAKE_TEST_LONG") else (1,)


class Killed(BaseException):
    """Between two tables."""


def _change(database: Database, number: int) -> None:
    """`t` is followed, `u` is copied again."""
    old, new = ("a", "z") if number % 2 else ("z", "a")
    database.execute(
        f"UPDATE t SET b = {number} WHERE id < 4; UPDATE u SET v = 'v{number}' WHERE id = {number}"
    )
    if number:
        database.execute(
            f"ALTER TABLE t RENAME {old} TO {new}; ALTER TABLE u ALTER v TYPE text USING v || 'x'"
        )
    database.execute(f"UPDATE t SET b = -{number} WHERE id = {number}; DELETE FROM u WHERE id = {9 - number}")


def _held(database: Database) -> dict[str, Counter[Any]]:
    with database.connect() as connection:
        return {table: source_rows(connection, table)[1] for table in ("t", "u")}


def test_killed_between_a_mirror_and_what_is_beside_it(
    session: Any, rest: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(SETUP)
    file = pipeline_file(tmp_path, database, ["t", "u"], extra=MODES, uri=rest, name=f"r{database.name}")
    file.write_text(file.read_text().replace("lake:\n", "lake:\n  publish: per_table\n", 1))
    with Pipeline.open(file) as pipeline:
        monkeypatch.setattr(RestPointers, "together", False)
        lsn = pipeline.init().lsn
        points = {lsn: _held(database)}
        for number, place in enumerate(PLACES):
            _change(database, number + 1)
            _killed(pipeline, place, monkeypatch)
            assert mirrors(pipeline, points[lsn]) == {}, place
            _change(database, 0)
            lsn = pipeline.sync().lsn
            points[lsn] = _held(database)
            assert mirrors(pipeline, points[lsn]) == {}, place
        assert past(pipeline, points, ["t", "u"]) == {}
        _at_the_newest_point(pipeline, lsn)


def _killed(pipeline: Any, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pipeline.pull().batch
    pipeline.apply(batch)
    done: list[Any] = []
    one = RestPointers._one

    def dies(self: RestPointers, change: dict[str, Any]) -> None:
        if len(done) == place:
            raise Killed
        done.append(change)
        one(self, change)

    with monkeypatch.context() as patched:
        patched.setattr(RestPointers, "_one", dies)
        with pytest.raises(Killed):
            pipeline.publish(batch)


def _at_the_newest_point(pipeline: Any, lsn: str) -> None:
    """After renames: by the names of now, in every table."""
    name = "z" if len(PLACES) % 2 else "a"
    for sql in (
        f"SELECT {name}, b FROM t ORDER BY id",
        f"SELECT {name}, b FROM t__history WHERE is_open ORDER BY id",
    ):
        found = [pipeline.query(sql, at=at).rows for at in (None, lsn)]
        assert found[0] == found[1] == _sorted(pipeline, name), sql
    log = f"SELECT count(new.{name}), count(old.b) FROM t__changes"
    assert pipeline.query(log).rows == pipeline.query(log, at=lsn).rows


def _sorted(pipeline: Any, name: str) -> list[Any]:
    rows = sorted(pipeline.rows("t", ["id", name, "b"]), key=lambda row: int(row[0]))
    return [row[1:] for row in rows]


def test_other_readers_find_a_column_by_its_name_where_its_type_changed(
    session: Any, rest: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows were staged while readers had another field of that name; with Spark, and without."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, gone text); INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)"
    )
    file = pipeline_file(tmp_path, database, ["t"], extra=MODES, uri=rest, name=f"r{database.name}")
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        catalog, points = pyiceberg_catalog(pipeline.lake), {}
        for number, kind in enumerate(("numeric(9,2)", "text")):
            monkeypatch.setenv(SWITCH, NEVER if number else "")
            database.execute(
                f"UPDATE t SET n = 7 WHERE id = 1; ALTER TABLE t ALTER n TYPE {kind}, ADD c{number} int;"
                f"ALTER TABLE t DROP {'c0' if number else 'gone'}; UPDATE t SET n = 1{number} WHERE id = 2"
            )
            points[tag(parse_lsn(pipeline.sync().lsn))] = _rows_of_source(database)
        assert pipeline.verify().equal
        for reader in (PyIceberg(catalog, pipeline.lake), DuckFiles(catalog, pipeline.lake)):
            for point, (names, rows) in points.items():
                assert rows_in(reader.read("t", point).select(names)) == rows, (reader.name, names)
            assert rows_in(reader.read("t", None).select(names)) == rows, reader.name


def _rows_of_source(database: Database) -> tuple[list[str], Rows]:
    with database.connect() as connection:
        names, rows = source_rows(connection, "t")
    return names, Counter({tuple(sorted(zip(names, row, strict=True))): count for row, count in rows.items()})


def test_a_replay_begins_with_the_names_of_its_start(
    session: Any, rest: str, database: Database, tmp_path: Path
) -> None:
    """The snapshot of `swapped` was written before its columns got the names that it is read by."""
    database.execute(
        "CREATE TABLE swapped (id int PRIMARY KEY, a text, b int);"
        "INSERT INTO swapped SELECT g, 'a' || g, g FROM generate_series(1, 9) g"
    )
    file = pipeline_file(tmp_path, database, ["swapped"], uri=rest, name=f"s{database.name}")
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        database.execute(
            "UPDATE swapped SET a = 'early' WHERE id = 1; ALTER TABLE swapped RENAME a TO x;"
            "ALTER TABLE swapped RENAME b TO a; ALTER TABLE swapped RENAME x TO b;"
            "UPDATE swapped SET b = 'late' WHERE id = 2"
        )
        swapped = pipeline.sync().lsn
        database.execute(
            f"CREATE TABLE other (id int PRIMARY KEY); ALTER PUBLICATION {file.stem} ADD TABLE other"
        )
        for number, start in enumerate((swapped, pipeline.sync().lsn)):
            namespace = f"scratch{number}_{database.name}"
            pipeline.replay(namespace, start=start, end="latest")
            scratch = ReadPoint.latest(scratch_of(pipeline.lake, namespace))
            with database.connect() as connection:
                assert Counter(scratch.rows("swapped")) == source_rows(connection, "swapped")[1]
