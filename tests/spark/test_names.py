"""Names go to the lake and back, and never meet each other or what is reserved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotlake.spark import names
from slotlake.spark.names import LakeName, lake_columns, lake_table, source_table

IDENTIFIER = st.text(
    st.one_of(
        st.sampled_from('_xX25EFb./\\` "commitsopyingexactſıKäÄ'),
        st.characters(exclude_characters="\0", codec="utf-8"),
    ),
    min_size=1,
    max_size=20,
)


@pytest.mark.seconds
@given(IDENTIFIER, IDENTIFIER)
def test_a_table_name_comes_back(schema: str, table: str) -> None:
    name = lake_table("shop", schema, table)
    assert source_table("shop", name) == (schema, table)
    assert not set("./`\\\0\n ") & set(name.namespace + name.table)
    assert not names.is_copying(name.namespace)
    assert name.table != "commits"


@given(st.lists(IDENTIFIER, unique=True, max_size=6))
def test_column_names_come_back_and_never_meet(columns: list[str]) -> None:
    encoded = lake_columns(columns)
    assert [names.decode(name) for name in encoded] == columns
    both = encoded + [names.exact_name(name) for name in encoded]
    # As Trino and DuckDB see them, and as Spark does (Java's equalsIgnoreCase looks at the capitals first).
    for see in (
        str.lower,
        lambda name: "".join(c.upper() if len(c.upper()) == 1 else c for c in name).lower(),
    ):
        assert len({see(name) for name in encoded}) == len(columns)
    assert not {name.lower() for name in both} & names.READERS_OWN
    assert len(set(both)) == len(both)


@given(st.tuples(IDENTIFIER, IDENTIFIER), st.tuples(IDENTIFIER, IDENTIFIER))
def test_two_tables_never_get_one_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (lake_table("shop", *one) == lake_table("shop", *other)) == (one == other)


@pytest.mark.parametrize(
    ("schema", "table", "expected"),
    [
        ("public", "orders", LakeName("shop", "orders")),
        ("sales", "orders", LakeName("shop__sales", "orders")),
        ("public", "Odd Name", LakeName("shop", "Odd_x20_Name")),
        ("public", "a.b/c`d", LakeName("shop", "a_x2E_b_x2F_c_x60_d")),
        ("public", "commits", LakeName("shop", "_x63_ommits")),
        ("copying", "t", LakeName("shop___x63_opying", "t")),
        ("public", "_x2E_", LakeName("shop", "_x5F_x2E_")),
        ("public", "größe", LakeName("shop", "größe")),
    ],
)
def test_names_as_documented(schema: str, table: str, expected: LakeName) -> None:
    assert lake_table("shop", schema, table) == expected


def test_names_of_63_odd_bytes_fit_every_catalog() -> None:
    name = lake_table("shop", "." * 63, "/" * 63)
    assert len(name.table) <= 200
    assert len(name.namespace) <= 255
    assert source_table("shop", name) == ("." * 63, "/" * 63)


def test_columns_that_differ_by_case_only_can_be_told_apart() -> None:
    columns = ["id", "ID", "total", "total__exact"]
    assert lake_columns(columns) == ["id", "_x49__x44_", "total", "total___x65_xact"]
    assert lake_columns(["s", "ſ", "ä", "Ä", "_xc4_"]) == ["s", "_x17F_", "ä", "_xC4_", "_xbl54ggnc7"]


def test_columns_that_readers_have_of_their_own_are_escaped() -> None:
    assert lake_columns(["_pos", "_POS", "_Row_ID", "pos", "__row_from_source"]) == [
        "__x70_os", "__x50_OS", "__x52_ow_ID", "pos", "___x72_ow_from_source"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", ("public", "orders")),
        ("Public.Orders", ("public", "orders")),
        ('"Odd Name"', ("public", "Odd Name")),
        ('sales."a.""b"', ("sales", 'a."b')),
    ],
)
def test_names_are_read_as_postgresql_writes_them(text: str, expected: tuple[str, str]) -> None:
    assert names.parse_postgres_name(text) == expected
    assert names.parse_postgres_name(names.postgres_name(*expected)) == expected


def test_what_is_no_name_is_a_key_error() -> None:
    for text in ("", "a.b.c", '"open', "two words"):
        with pytest.raises(KeyError):
            names.parse_postgres_name(text)
