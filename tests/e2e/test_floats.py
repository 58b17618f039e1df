"""Floats at the ends of their order: no reader that skips files and row groups loses a row by it.

NaN is greater than all numbers for PostgreSQL, Spark and DuckDB, and within no bounds of files and row
groups; 0 and -0 are equal, and bounds and dictionaries tell them apart.  Each reader is asked with each
condition, and once more over all rows with nothing skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg import expressions
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow

from slotlake import Pipeline
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.e2e.readers import duckdb_connection, duckdb_secret, pyiceberg_catalog
from tests.roads.floats import bounded_floats
from tests.roads.lake_files import Json, LakeFiles, snapshots_in_use
from tests.storage import IN_NESSIE, IN_S3, ON_REST

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(IN_NESSIE, reason="its catalog has no branches to stage in"),
]
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
# Each group is a file.
GROUPS: Sequence[Sequence[str | None]] = (
    ("1.5", "NaN", "-2"),
    ("NaN", "NaN"),
    ("NaN", None),
    ("-0", "NaN"),
    ("0", "-0"),
    ("-0",),
    ("0",),
    ("-Infinity", "NaN", "-1"),
    ("Infinity", "NaN"),
    ("1e-45", "-1e-45", "NaN"),
    ("3.4028235e38", "-3.4028235e38"),
    ("3.4028235e38", "NaN"),
    (None, None),
    ("7", None, "2"),
    # So alike that a writer makes a dictionary.
    ("-0",) * 8,
    ("0",) * 8,
    ("NaN",) * 8,
)
NUMBERS = (
    ("-Infinity", "-1", "-0", "0", "1", "1e37", "Infinity", "NaN") if LONG else ("-0", "0", "1e37", "NaN")
)
COLUMNS = ("a", "b") if LONG else ("a",)
_SQL = ("=", "<>", ">", ">=", "<", "<=")
_ICEBERG: Any = expressions  # its types do not say how its conditions are made
_COMPARISONS = ("EqualTo", "NotEqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")


def _rows(first: int, group: int) -> str:
    values = ((first + 100 * group + i, v) for i, v in enumerate(GROUPS[group]))
    return ", ".join(f"({i}, {group}, '{v}', '{v}')".replace("'None'", "NULL") for i, v in values)


def _all_rows(first: int) -> str:
    return ", ".join(_rows(first, group) for group in range(len(GROUPS)))


def _conditions(column: str) -> list[str]:
    """What SQL is asked, in words that DuckDB and Spark share."""
    kind = "FLOAT" if column.endswith("b") else "DOUBLE"
    of = {value: f"CAST('{value}' AS {kind})" for value in {*NUMBERS, "1"}}
    more = (
        *(f"{column} IN ({of[value]}, {of['1']})" for value in ("0", "NaN")),
        f"{column} NOT IN ({of['NaN']}, {of['1']})",
        f"{column} BETWEEN {of['1']} AND {of['NaN']}",
        f"{column} BETWEEN {of['0']} AND {of['-0']}",
        *(f"{column} {form}" for form in ("IS NULL", "IS NOT NULL", f"IS DISTINCT FROM {of['NaN']}")),
        *(f"{no} isnan({column})" for no in ("", "NOT")),
    )
    return [*(f"{column} {form} {of[value]}" for form in _SQL for value in NUMBERS), *more]


class Lost:
    """What readers lose: reader, table and condition → rows."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline, self.found = pipeline, Counter[str]()

    def look(self, table: str, who: str, columns: Sequence[str] = COLUMNS, row: str = "id") -> None:
        """Ask all readers for rows of a table; ``who`` wrote it."""
        loaded = pyiceberg_catalog(self.pipeline.lake).load_table(f"shop.{table}")
        place = f"{self.pipeline.lake.catalog}.shop.{table}"
        with duckdb_connection("httpfs", "avro", "iceberg") as connection:
            duckdb_secret(connection)
            scan = f"iceberg_scan('{loaded.metadata_location}')"
            for column in columns:
                self._sql(f"{who}: DuckDB", connection.execute, scan, column, row)
                self._sql(f"{who}: Spark", self.pipeline.session.sql, place, column, row)
                if row == "id":  # pyiceberg asks for no part of a struct
                    self._pyiceberg(f"{who}: pyiceberg", loaded, column)

    def _compare(self, what: str, found: Counter[Any], expected: Counter[Any]) -> None:
        assert found <= expected, what
        self.found[what] += (expected - found).total()

    def _sql(self, who: str, ask: Callable[[str], Any], place: str, column: str, row: str) -> None:
        def answers(query: str) -> list[tuple[Any, ...]]:
            answer = ask(query)
            return [
                tuple(each) for each in (answer.collect() if who.endswith("Spark") else answer.fetchall())
            ]

        conditions = _conditions(column)
        # Where a condition is a column of the answer, no row is skipped.
        whole = answers(f"SELECT {row}, {', '.join(conditions)} FROM {place}")
        asked = [f"SELECT {i}, {row} FROM {place} WHERE {each}" for i, each in enumerate(conditions)]
        actual = answers(" UNION ALL ".join(asked))
        for i, condition in enumerate(conditions):
            expected = Counter(of[0] for of in whole if of[i + 1])
            self._compare(f"{who}: {condition}", Counter(r for n, r in actual if n == i), expected)

    def _pyiceberg(self, who: str, loaded: Any, name: str) -> None:
        whole = loaded.scan().to_arrow()
        numbers = [float(value) for value in NUMBERS if value != "NaN"]  # it has no literal for NaN
        asked = [getattr(_ICEBERG, form)(name, value) for form in _COMPARISONS for value in numbers]
        asked += [getattr(_ICEBERG, form)(name, (0.0, 1.0)) for form in ("In", "NotIn")]
        asked += [getattr(_ICEBERG, form)(name) for form in ("IsNaN", "NotNaN", "IsNull")]
        for each in asked:
            bound = bind(loaded.schema(), each, case_sensitive=True)
            expected = whole.filter(expression_to_pyarrow(bound))
            rows = (Counter(t.column("id").to_pylist()) for t in (loaded.scan(each).to_arrow(), expected))
            self._compare(f"{who}: {each}", *rows)


@contextmanager
def _engine(engine: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOTLAKE_DIRECT", engine)
        yield


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it; the matrix looks at files")
def test_no_row_is_lost(database: Database, session: Any, tmp_path: Path) -> None:
    columns = "(id int PRIMARY KEY, g int, a float8, b float4)"
    alone = range(len(GROUPS)) if LONG else (0, 4)
    small = [f"g{group}" for group in alone]
    for group, table in zip(alone, small, strict=True):
        database.execute(f"CREATE TABLE {table} {columns}; INSERT INTO {table} VALUES {_rows(0, group)}")
    for table in ("laid", "past"):
        database.execute(f"CREATE TABLE {table} {columns}; INSERT INTO {table} VALUES {_all_rows(0)}")
    extra = (
        "  laid:\n    partition_by: g\n  past:\n    partition_by: g\n    mode: [mirror, history, append]\n"
    )
    with Pipeline.open(pipeline_file(tmp_path, database, small, extra=extra)) as pipeline:
        lost = Lost(pipeline)
        pipeline.init()
        for table in [*small, "laid"]:
            lost.look(table, "the copy")
        for number, engine in enumerate(("usually", "never"), 1):
            # The files of before leave: each file was written by this engine.
            database.execute(f"DELETE FROM laid; INSERT INTO laid VALUES {_all_rows(number * 10000)}")
            with _engine(engine):
                pipeline.sync()
            lost.look("laid", {"usually": "slotlake", "never": "Spark"}[engine])
        lost.look("past__history", "a history")
        lost.look("past__changes", "a change log", [f"new.{column}" for column in COLUMNS], "new.id")
        assert not +lost.found
        assert_equal(database, pipeline, [*small, "laid", "past"])


# -- by what is written, for every writer -----------------------------------------------------------------


def _bounded(files: LakeFiles, metadata: Json, since: int) -> list[str]:
    """What files added since a sequence number say of floats."""
    found = []
    for json in snapshots_in_use(metadata):
        for entry in files.snapshot(metadata, json).data.values():
            if entry.sequence_number > since:
                found += [f"{each} of {entry.path[-60:]}" for each in bounded_floats(files, metadata, entry)]
    return found


MADE = """
CREATE TYPE pair AS (x float8, n int);
CREATE TABLE t (id float8 PRIMARY KEY, a float4, s pair, l float8[], v text);
INSERT INTO t SELECT g, g, (g, g)::pair, ARRAY[g, float8 'NaN'], 'x' FROM generate_series(1, 50) g
"""
STEPS = (
    "UPDATE t SET a = 'NaN' WHERE id < 9; INSERT INTO t VALUES ('NaN', 'NaN', ('NaN', 1)::pair, '{NaN}')",
    "ALTER TABLE t ADD c float8; UPDATE t SET c = 'NaN' WHERE id > 40; UPDATE t SET v = 'z' WHERE id = 'NaN'",
    "ALTER TABLE t RENAME a TO d; ALTER TABLE t ADD a text; UPDATE t SET a = 'a', d = -0.0 WHERE id > 30",
    "ALTER TABLE t ALTER d TYPE float8; UPDATE t SET d = 'NaN' WHERE id < 20",
    "ALTER TABLE t DROP c; ALTER TABLE t ADD c int; UPDATE t SET c = 1; DELETE FROM t WHERE id = 'NaN'",
)


@pytest.mark.skipif(IN_S3 or ON_REST, reason="it looks at files in a folder, and alters a table by SQL")
@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("engine", ["usually", "never"])
def test_no_writer_bounds_a_float(database: Database, session: Any, tmp_path: Path, engine: str) -> None:
    database.execute(MADE)
    tables = ("t", "t__history", "t__changes") if engine == "never" else ("t",)
    modes = "  t:\n    mode: [mirror, history, append]\n" if engine == "never" else "  t: {}\n"
    extra = f"{modes}types: {{arrays: list, composites: struct}}\n"
    file = pipeline_file(tmp_path, database, [], extra=extra)
    with Pipeline.open(file) as pipeline, _engine(engine):
        files = LakeFiles(
            lambda location: Path(location.removeprefix("file://").removeprefix("file:")),
            duckdb_connection("avro"),
        )
        catalog = pyiceberg_catalog(pipeline.lake)
        since = dict.fromkeys(tables, 0)

        def metadata(table: str) -> Json:
            return files.metadata(catalog.load_table(f"shop.{table}").metadata_location)

        def judge(step: str) -> None:
            for table in tables:
                assert _bounded(files, metadata(table), since[table]) == [], (table, step)

        pipeline.init()
        judge("init")
        for step in STEPS:
            database.execute(step)
            assert pipeline.sync().set_aside == {}
            judge(step)
            assert_equal(database, pipeline, ["t"])
        pipeline.maintain()
        judge("maintain")
        pipeline.backfill("t")
        judge("backfill")
        _as_of_an_earlier_version(pipeline, metadata("t"))
        since["t"] = metadata("t")["last-sequence-number"]
        database.execute("UPDATE t SET d = 'NaN'")
        pipeline.sync()
        judge("the first batch of a table of an earlier version")
        assert _float_properties(metadata("t")) == {"id", "d", "s.x", "c__dropped"}
        assert pipeline.verify().equal


def _float_properties(metadata: Json) -> set[str]:
    prefix = "write.metadata.metrics.column."
    return {name.removeprefix(prefix) for name in metadata["properties"] if name.startswith(prefix)}


def _as_of_an_earlier_version(pipeline: Any, metadata: Json) -> None:
    names = [name for name in metadata["properties"] if ".column." in name]
    listed = ", ".join(f"'{name}'" for name in names)
    pipeline.session.sql(f"ALTER TABLE lake.shop.t UNSET TBLPROPERTIES ({listed})").collect()
