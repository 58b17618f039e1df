"""A look at a catalog in PostgreSQL says what is there, and reads only the parts that have changed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from slotlake.spark.catalog.open import open_catalog, read_listing
from slotlake.spark.catalog.sql.pointer_texts import ROWS, PointerTexts, split
from slotlake.spark.catalog.sql.postgresql_looks import PARTS, PostgresqlLooks
from slotlake.spark.catalog.view_spaces import OWNER
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName
from tests.catalogs import postgres_uri
from tests.conftest import Database

ASKED = {"catalog": "lake", "owner": OWNER}
SPACES = ("shop", "shop__s", "other", "pinned views", "Ünïcode")


@pytest.fixture
def lake(database: Database) -> LakeSettings:
    """A new catalog."""
    lake = LakeSettings("lake", postgres_uri(database), "file:///nowhere", "shop")
    with open_catalog(lake):
        return lake


@pytest.fixture
def own(lake: LakeSettings) -> Iterator[Connection]:
    engine = create_engine(lake.sqlalchemy_uri, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


class _Looking:
    def __init__(self, connection: Connection) -> None:
        self.connection, self.looks = connection, PostgresqlLooks()
        self.read: list[int] = []
        self.answered: list[int] = []

    def ask(self, query: str, parameters: Mapping[str, str]) -> Sequence[Any]:
        answer = self.connection.execute(text(query), parameters).all()
        self.answered.append(len(answer))
        self.read.append(sum(row[2] or 0 for row in answer))
        return answer

    def look(self) -> PointerTexts:
        return self.looks.texts(self.connection.connection.driver_connection, self.ask, ASKED)

    def rows(self) -> list[tuple[str, str, str]]:
        rows = self.look().rows()
        assert rows is not None
        return rows


def _rows(connection: Connection) -> list[tuple[str, str, str]]:
    return [tuple(row) for row in connection.execute(text(ROWS), ASKED)]


def _insert(connection: Connection, names: Sequence[tuple[str, str]], catalog: str = "lake") -> None:
    values = [{"c": catalog, "s": space, "n": name, "l": f"{space}/{name}/0"} for space, name in names]
    statement = (
        "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location) "
        "VALUES (:c, :s, :n, :l) ON CONFLICT DO NOTHING"
    )
    connection.execute(text(statement), values)


def test_whatever_changes_a_look_says_what_is_there(own: Connection) -> None:
    chance, looking = random.Random(7), _Looking(own)
    assert looking.rows() == []
    named, properties = "WHERE table_name = :name", "iceberg_namespace_properties"
    statements = (
        f"UPDATE iceberg_tables SET metadata_location = :value {named}",
        f"UPDATE iceberg_tables SET table_name = :value {named}",
        f"UPDATE iceberg_tables SET table_namespace = :space {named}",
        f"UPDATE iceberg_tables SET catalog_name = :value {named} AND table_namespace = :space",
        f"UPDATE iceberg_tables SET metadata_location = NULL {named}",
        f"DELETE FROM iceberg_tables {named}",
        f"INSERT INTO {properties} VALUES ('lake', :space, '{OWNER}', 'x')",
        f"DELETE FROM {properties} WHERE namespace = :space",
    )
    for turn in range(150):
        names = [(chance.choice(SPACES), f"t{chance.randrange(60)}") for _ in range(8)]
        _insert(own, names, chance.choice(["lake", "lake", "other lake"]))
        space, name = chance.choice(names)
        statement = chance.choice(statements)
        with suppress(IntegrityError):  # a row of that name is there
            own.execute(text(statement), {"value": f"v{turn}", "name": name, "space": space})
        assert sorted(looking.rows()) == sorted(_rows(own))
    assert sorted(looking.rows()) == sorted(_Looking(own).rows())


def test_only_the_parts_that_have_changed_are_read(own: Connection) -> None:
    looking = _Looking(own)
    _insert(own, [("shop", f"table_{number}") for number in range(PARTS * 10)])
    first = looking.look()
    assert looking.look() is first
    own.execute(text("UPDATE iceberg_tables SET metadata_location = 'new' WHERE table_name = 'table_7'"))
    second = looking.look()
    assert second.has_names_of(first)  # in the same order, so that one place has changed
    places = zip(split(first.locations), split(second.locations), strict=True)
    assert [place for place in places if place[0] != place[1]] == [("shop/table_7/0", "new")]
    everything, nothing, part = looking.read
    assert (everything, nothing) == (PARTS * 10, 0)
    assert 0 < part < 40
    own.execute(
        text("UPDATE iceberg_tables SET metadata_location = 'shop/table_7/0' WHERE metadata_location = 'new'")
    )
    assert looking.look() == first


def test_nothing_is_asked_while_no_transaction_has_ended(own: Connection, database: Database) -> None:
    looking = _Looking(own)
    _insert(own, [("shop", f"t{number}") for number in range(500)])
    first = looking.look()
    with database.connect() as other, other.transaction():
        other.execute("UPDATE iceberg_tables SET metadata_location = 'new' WHERE table_name = 't1'")
        assert looking.look() is first  # it is open
        assert looking.look() is first
        asked = looking.answered[-1]
    assert ("shop", "t1", "new") in looking.rows()
    with database.connect() as other:
        other.execute("BEGIN; SELECT txid_current(); ROLLBACK")
    second = looking.look()
    assert looking.look() is second
    whole, _, *_ = looking.answered
    assert (whole, asked, looking.answered[-1]) == (len(looking.looks._last.parts), 1, 1)  # type: ignore[union-attr]


def test_an_answer_about_transactions_holds_in_its_session_only(own: Connection, lake: LakeSettings) -> None:
    looking = _Looking(own)
    _insert(own, [("shop", f"t{number}") for number in range(500)])
    first = looking.look()
    assert looking.look() is first
    engine = create_engine(lake.sqlalchemy_uri)
    with engine.connect() as looking.connection:
        assert [looking.look() for _ in range(2)] == [first] * 2
    engine.dispose()
    parts = looking.answered[0]
    assert parts > 100
    assert looking.answered == [parts, 1, parts, 1]


def test_a_catalog_without_tables_is_empty_each_time(own: Connection) -> None:
    looking = _Looking(own)
    assert [looking.rows() for _ in range(3)] == [[]] * 3
    _insert(own, [("shop", "a")])
    assert len(looking.rows()) == 1
    own.execute(text("DELETE FROM iceberg_tables"))
    assert [looking.rows() for _ in range(3)] == [[]] * 3


def test_an_exchange_of_two_pointers_is_seen(own: Connection) -> None:
    """Their hashes are of the whole row: the sum is not that of the same values in other places."""
    looking = _Looking(own)
    _insert(own, [("shop", "a"), ("shop__s", "a"), ("shop", "b")])
    looking.rows()
    own.execute(
        text(
            "UPDATE iceberg_tables SET metadata_location = CASE table_namespace "
            "WHEN 'shop' THEN 'shop__s/a/0' ELSE 'shop/a/0' END WHERE table_name = 'a'"
        )
    )
    assert ("shop", "a", "shop__s/a/0") in looking.rows()
    assert sorted(looking.rows()) == sorted(_rows(own))


def test_a_name_with_the_separator_is_left_to_rows(lake: LakeSettings, own: Connection) -> None:
    _insert(own, [("shop", "a\x1eb"), ("shop", "c")])
    assert _Looking(own).look().rows() is None
    assert read_listing(lake).names == {LakeName("shop", "a\x1eb"), LakeName("shop", "c")}


def test_a_process_remembers_a_catalog_from_one_opening_to_the_next(
    lake: LakeSettings, own: Connection, database: Database
) -> None:
    _insert(own, [("shop", name) for name in "abc"])
    with open_catalog(lake) as catalog:
        first = catalog.listing()
    assert read_listing(lake) is first
    with psycopg.connect(database.dsn, autocommit=True) as other:
        other.execute("UPDATE iceberg_tables SET metadata_location = 'x' WHERE table_name = 'b'")
    assert read_listing(lake).changed_since(first) == {LakeName("shop", "b")}
