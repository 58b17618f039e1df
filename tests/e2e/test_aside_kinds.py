"""Tables set aside for their row filter, their type, their partition: others go on, and each comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.sync import resuming
from tests.conftest import Database
from tests.e2e.aside_causes import BAD, encoded_database, five_rows
from tests.e2e.oracle import assert_equal, pipeline_file, source_rows

pytestmark = pytest.mark.timeout(600)

THREE = ["one", "two", "three"]
# Filter of the pipeline file → a value of n at which PostgreSQL fails to evaluate it.
FILTERS = {
    "divided": ("12 / n < 100", 0),
    "narrow": ("n::int * 1000000 > 0", 5_000),
    "small": ("n::smallint < 30000", 40_000),
}


def _filtered(database: Database, pipeline: Any, table: str) -> None:
    with database.connect() as connection:
        chosen = f"(SELECT * FROM {table} WHERE {FILTERS[table][0]}) AS chosen"
        assert Counter(pipeline.rows(table)) == source_rows(connection, chosen)[1], table


def _pipeline_file(folder: Path, database: Database, *plain: str) -> Path:
    sections = "".join(f'  {name}: {{filter: "{condition}"}}\n' for name, (condition, _) in FILTERS.items())
    return pipeline_file(folder, database, list(plain), extra=sections)


def _numbers(database: Database, *names: str) -> None:
    for name in names:
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, n bigint)")
        database.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
        database.execute(f"INSERT INTO {name} SELECT g, g FROM generate_series(1, 5) g")


def test_a_filter_that_fails_at_a_value(database: Database, session: Any, tmp_path: Path) -> None:
    """In a change, in the copy that is to bring it back, and in one from the start; no value is told."""
    five_rows(database, "good")
    _numbers(database, *FILTERS)
    file = _pipeline_file(tmp_path, database, "good")
    names = {f"public.{name}" for name in FILTERS}
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        with database.connect() as writer, writer.transaction():
            writer.execute("UPDATE good SET v = 'same transaction'")
            for name, (_, value) in FILTERS.items():
                writer.execute(
                    f"UPDATE {name} SET n = n + 1; INSERT INTO {name} VALUES (6, {value})".encode()
                )
        report = pipeline.sync()
        assert set(report.set_aside) == names
        assert_equal(database, pipeline, ["good"])
        assert all("filter" in why and "40000" not in why for why in report.set_aside.values())
        assert {len(list(pipeline.rows(name))) for name in FILTERS} == {5}  # as they were
        for name in FILTERS:
            with pytest.raises(SlotlakeError) as refused:
                pipeline.resume(name)
            assert refused.value.table == ("public", name)
            assert refused.value.way_out
        database.execute("UPDATE good SET v = 'goes on'")
        assert set(pipeline.sync().set_aside) == names
        assert_equal(database, pipeline, ["good"])
        verified = pipeline.verify()
        assert not verified.equal
        assert verified.tables["public.good"].equal

        for name in FILTERS:
            database.execute(f"UPDATE {name} SET n = 7 WHERE id = 6")
        assert set(pipeline.sync().resumed) == names
        for name in FILTERS:
            _filtered(database, pipeline, name)
            database.execute(f"UPDATE {name} SET n = n + 1 WHERE id > 3; DELETE FROM {name} WHERE id = 1")
        assert pipeline.sync().set_aside == {}
        for name in FILTERS:
            _filtered(database, pipeline, name)
        assert pipeline.verify().equal


def test_a_filter_that_fails_from_the_start(database: Database, session: Any, tmp_path: Path) -> None:
    five_rows(database, "good")
    _numbers(database, *FILTERS)
    for name, (_, value) in FILTERS.items():
        database.execute(f"INSERT INTO {name} VALUES (6, {value})")
    with Pipeline.open(_pipeline_file(tmp_path, database, "good")) as pipeline:
        report = pipeline.init()
        assert set(report.set_aside) == {f"public.{name}" for name in FILTERS}
        assert [each.table for each in report.tables] == ["public.good"]
        for name in FILTERS:
            database.execute(f"DELETE FROM {name} WHERE id = 6")
        assert pipeline.sync().set_aside == {}
        for name in FILTERS:
            _filtered(database, pipeline, name)
        assert pipeline.verify().equal


@pytest.mark.parametrize("through_root", [False, True])
def test_a_partition_from_the_start(
    database: Database, session: Any, tmp_path: Path, *, through_root: bool
) -> None:
    """Published by itself a partition is a table of its own; through its root it is the root's trouble."""
    with encoded_database(database.server, f"{database.name}_bytes", "SQL_ASCII") as bytes_database:
        five_rows(bytes_database, "good")
        bytes_database.execute(
            "CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
            "CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (10);"
            "CREATE TABLE high PARTITION OF root FOR VALUES FROM (10) TO (40);"
            "INSERT INTO root SELECT g, 'v' FROM generate_series(1, 19) g;"
            f"INSERT INTO root VALUES (0, {BAD});"
            "CREATE PUBLICATION shop FOR TABLE good, root"
            f" WITH (publish_via_partition_root = {str(through_root).lower()})"
        )
        troubled = "public.root" if through_root else "public.low"
        others = ["good"] if through_root else ["good", "high"]
        with Pipeline.open(pipeline_file(tmp_path, bytes_database, [])) as pipeline:
            report = pipeline.init()
            assert list(report.set_aside) == [troubled]
            assert sorted(each.table for each in report.tables) == [f"public.{name}" for name in others]
            bytes_database.execute("UPDATE root SET v = 'w' WHERE id > 0; UPDATE good SET v = 'x'")
            assert list(pipeline.sync().set_aside) == [troubled]
            assert_equal(bytes_database, pipeline, others)
            bytes_database.execute("UPDATE root SET v = 'corrected' WHERE id = 0")
            assert pipeline.resume(troubled).rows == (20 if through_root else 10)
            bytes_database.execute(
                "UPDATE root SET id = id + 20 WHERE id IN (2, 3); DELETE FROM root WHERE id = 5"
            )
            assert pipeline.sync().set_aside == {}
            assert_equal(bytes_database, pipeline, ["good", *(["root"] if through_root else ["low", "high"])])
            assert pipeline.verify().equal


# A type without a binary form, and one whose output function fails: nobody can read a value of it.
TYPES = """
CREATE TYPE plain;
CREATE FUNCTION plain_in(cstring) RETURNS plain AS 'textin' LANGUAGE internal STRICT IMMUTABLE;
CREATE FUNCTION plain_out(plain) RETURNS cstring AS 'textout' LANGUAGE internal STRICT IMMUTABLE;
CREATE TYPE plain (input = plain_in, output = plain_out, like = text);
CREATE TYPE broken;
CREATE FUNCTION broken_in(cstring) RETURNS broken AS 'textin' LANGUAGE internal STRICT IMMUTABLE;
CREATE FUNCTION broken_out(broken) RETURNS cstring AS 'pg_node_tree_in' LANGUAGE internal STRICT IMMUTABLE;
CREATE TYPE broken (input = broken_in, output = broken_out, like = text)
"""


def test_a_type_that_nobody_knows(database: Database, session: Any, tmp_path: Path) -> None:
    """Every type is read as its text; none is unsupported but one whose values the server cannot print."""
    five_rows(database, "good")
    database.execute(TYPES)
    database.execute(
        "CREATE TABLE odd (id int PRIMARY KEY, p plain, ps plain[], a aclitem, g gtsvector, s pg_snapshot);"
        "INSERT INTO odd VALUES (1, 'x', '{x,NULL}', ('=r/' || current_user)::aclitem, NULL, '10:20:');"
        "CREATE TABLE bad (id int PRIMARY KEY, b broken); INSERT INTO bad VALUES (1, NULL), (2, 'x')"
    )
    with Pipeline.open(pipeline_file(tmp_path, database, ["good", "odd", "bad"])) as pipeline:
        assert list(pipeline.init().set_aside) == ["public.bad"]
        assert_equal(database, pipeline, ["good", "odd"])
        database.execute("UPDATE odd SET p = 'y', ps = '{y}'; INSERT INTO odd (id) VALUES (2)")
        assert list(pipeline.sync().set_aside) == ["public.bad"]
        assert_equal(database, pipeline, ["good", "odd"])
        database.execute("DELETE FROM bad WHERE id = 2")
        assert pipeline.sync().set_aside == {}
        assert_equal(database, pipeline, ["good", "odd", "bad"])
        assert pipeline.verify().equal


@pytest.fixture
def bytes_database(database: Database) -> Iterator[Database]:
    """A database that takes any bytes for text, with three tables."""
    with encoded_database(database.server, f"{database.name}_ascii", "SQL_ASCII") as made:
        five_rows(made, "one", "two", "three")
        yield made


def _spoil(database: Database) -> None:
    for table in THREE:
        database.execute(f"INSERT INTO {table} VALUES (6, {BAD})")


def _correct(database: Database) -> None:
    for table in THREE:
        database.execute(f"DELETE FROM {table} WHERE id = 6")


def test_many_come_back_over_several_syncs(bytes_database: Database, session: Any, tmp_path: Path) -> None:
    """A sync copies set-aside tables for a while, so that the others are not held up by many of them."""
    assert session is not None
    lines: list[str] = []
    file = pipeline_file(tmp_path, bytes_database, THREE, source="copy_seconds_per_sync: 0.001")
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        _spoil(bytes_database)
        assert len(pipeline.sync().set_aside) == 3
        _correct(bytes_database)
        first = pipeline.sync(progress=lambda step, *_: lines.append(step)).resumed
        assert len(first) == 1
        (left,) = [line for line in lines if "until the next sync" in line]
        assert left.startswith("2 tables stay set aside until the next sync, from public.t")
        assert left.endswith("others were copied for 0.001 s (source.copy_seconds_per_sync)")
        then = [table for _ in range(2) for table in pipeline.sync().resumed]
        assert sorted([*first, *then]) == ["public.one", "public.three", "public.two"]
        assert_equal(bytes_database, pipeline, THREE)


def test_open_transactions_are_waited_for_once(
    bytes_database: Database, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tables that need a snapshot without open transactions the first waits, not each."""
    assert session is not None
    lines: list[str] = []
    monkeypatch.setattr(resuming, "WAIT_SECONDS", 0.5)
    _spoil(bytes_database)
    with Pipeline.open(pipeline_file(tmp_path, bytes_database, THREE)) as pipeline:
        assert len(pipeline.init().set_aside) == 3
        _correct(bytes_database)
        with bytes_database.connect() as open_one, open_one.transaction():
            open_one.execute("SELECT pg_current_xact_id()")
            assert pipeline.sync(progress=lambda step, *_: lines.append(step)).resumed == []
        assert len([line for line in lines if line.endswith("was set aside: copied again")]) == 1
        (left,) = [line for line in lines if "until the next sync" in line]
        assert "waited 0.5 s for transactions that are still open" in left
        assert len(pipeline.sync().resumed) == 3
        assert_equal(bytes_database, pipeline, THREE)
