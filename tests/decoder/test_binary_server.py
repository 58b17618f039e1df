# ruff: noqa: E501
"""PostgreSQL as the oracle of binary values: what its send functions write is printed as it prints.

For every value three things must be the same: the server's text, the text made of its binary form, and
the Arrow arrays that the text and the binary form are read into.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from slotlake.decoder.types.binary.values import WITHHELD, binary_text, withheld_from_binary
from slotlake.decoder.types.catalog import BUILTIN_TYPES, Kind, TypeCatalog, TypeEntry, load_types
from slotlake.decoder.types.slices import slices_of
from slotlake.decoder.types.table import (
    column_type,
    parse_binary_slices,
    parse_mixed_slices,
    parse_slices,
    sql_text,
    to_text,
)
from slotlake.decoder.types.text_error import TextError
from slotlake.infra.local.postgres import EmbeddedPostgres
from tests.conftest import Database
from tests.decoder.binary_values import LATER, QUERIES, VALUES

OPTIONS = (
    "-c DateStyle=ISO -c IntervalStyle=postgres -c extra_float_digits=1 -c TimeZone=UTC -c bytea_output=hex"
)
Connection = psycopg.Connection[tuple[Any, ...]]
oracle = settings(  # values are short and many at a time: shrinking would take minutes and tell nothing
    max_examples=15, deadline=None, suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)  # fmt: skip
RECORD = 2249  # the type of ROW(…), which no column can have; here it stands for any composite


@pytest.fixture(scope="module")
def server(pg: EmbeddedPostgres) -> Iterator[Connection]:
    with psycopg.connect(pg.dsn(), autocommit=True, options=OPTIONS) as connection:
        connection.execute("DROP SCHEMA IF EXISTS tb CASCADE; CREATE SCHEMA tb")
        yield connection
        connection.execute("DROP SCHEMA tb CASCADE")


@pytest.fixture(scope="module")
def catalog(server: Connection) -> TypeCatalog:
    found = load_types(server)
    found.add([TypeEntry(RECORD, "record", Kind.COMPOSITE)])
    return found


def one(server: Connection, query: str, *parameters: Any) -> Any:
    row = server.execute(query, parameters or None).fetchone()
    assert row is not None
    return row[0]


def agree(server: Connection, catalog: TypeCatalog, values: str, typmod: int = -1, oid: int = 0) -> int:
    """Compare all forms of what a query (one column) gives; returns how many values that were."""
    oid = oid or one(server, f"SELECT pg_typeof(v)::oid::bigint FROM ({values}) q (v)")
    send = one(server, "SELECT typsend::regproc::text FROM pg_type WHERE oid = %s", oid)
    sent = "textsend(v::text)" if send == "textsend" else f"{send}(v)"
    rows = server.execute(f"SELECT {sql_text('v', oid)}, {sent} FROM ({values}) q (v)").fetchall()
    texts, datas = [row[0] for row in rows], [row[1] for row in rows]
    for text, data in rows:
        if text is not None:
            assert binary_text(data, oid, catalog) == text
    ct = column_type(oid, typmod)
    text_slices = slices_of(pa.array([None, *texts], pa.string()))
    data_slices = slices_of(pa.array([None, *datas], pa.binary()))
    parsed = parse_slices(text_slices, ct)
    read = parse_binary_slices(data_slices, ct, catalog)
    assert_same(read, parsed)
    assert to_text(*read, ct).to_pylist() == [None, *texts]
    both = [text if i % 2 else data for i, (text, data) in enumerate(zip(texts, datas, strict=True))]
    both = [value.encode() if isinstance(value, str) else value for value in both]
    flags = pa.array([i % 2 == 0 for i in range(len(both))]).to_numpy(zero_copy_only=False)
    assert_same(parse_mixed_slices(slices_of(pa.array([*both], pa.binary())), flags, ct, catalog),
                (parsed[0][1:], None if parsed[1] is None else parsed[1][1:]))  # fmt: skip
    return len(rows)


def assert_same(read: tuple[pa.Array, pa.Array | None], parsed: tuple[pa.Array, pa.Array | None]) -> None:
    for ours, theirs in zip(read, parsed, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            ours.validate(full=True)
            assert ours.type == theirs.type
            assert bits(ours).equals(bits(theirs))


def bits(values: pa.Array) -> pa.Array:
    """NaN is not NaN, but its bits are."""
    if not pa.types.is_floating(values.type):
        return values
    return values.view(pa.int64() if values.type.bit_width == 64 else pa.int32())


def values_of(server: Connection, sql_type: str) -> str:
    """A query for the table's values of a type."""
    if sql_type in QUERIES:
        return QUERIES[sql_type]
    return rows_of(server, sql_type, (VALUES | LATER)[sql_type])


def rows_of(server: Connection, sql_type: str, texts: list[str]) -> str:
    """A query that reads these texts as values of a type."""
    literals = ", ".join(f"({psycopg.sql.Literal(text).as_string(server)})" for text in texts)
    return f"SELECT t::{sql_type} FROM (VALUES {literals}) x (t)"


def available(server: Connection, sql_type: str) -> bool:
    """Not every version has each type, and a server can be built without XML."""
    return bool(one(server, "SELECT to_regtype(%s) IS NOT NULL", sql_type)) and (
        sql_type != "xml" or has_xml(server)
    )


@pytest.mark.parametrize("sql_type", [*VALUES, *LATER, *QUERIES])
def test_every_type_alone_in_arrays_and_in_composites(
    server: Connection, catalog: TypeCatalog, sql_type: str
) -> None:
    if not available(server, sql_type):
        return
    query = values_of(server, sql_type)
    typmod = one(server, "SELECT coalesce(to_regtypemod(%s), -1)", sql_type)
    assert agree(server, catalog, query, typmod) > 0
    if sql_type in {"pg_node_tree", "int2vector", "oidvector"}:  # arrays of these cannot be made like this
        return
    arrays = (
        "SELECT array_agg(v) FROM vs", "SELECT ARRAY[v, NULL] FROM vs", "SELECT ARRAY[[v, NULL], [NULL, v]] FROM vs",
        "SELECT array_fill(v, ARRAY[2, 1, 2], ARRAY[-3, 1, 2147483600]) FROM vs",
        "SELECT (array_agg(v))[1:0] FROM vs",
    )  # fmt: skip
    for array in arrays:
        agree(server, catalog, f"WITH vs (v) AS ({query}) {array}")
    record = "ROW(v, ARRAY[v, NULL], ROW(v, ROW(), ROW(NULL)), NULL)"
    agree(server, catalog, f"WITH vs (v) AS ({query}) SELECT {record} FROM vs", oid=RECORD)


def test_every_built_in_type_with_a_binary_form_is_covered(server: Connection) -> None:
    found = server.execute(
        "SELECT oid::bigint, typname, typsend <> 0 FROM pg_type WHERE oid < 10000 AND typtype IN ('b', 'r', 'm') "
        "AND typsubscript <> 'array_subscript_handler'::regproc OR oid IN (22, 30)"
    ).fetchall()
    there = [name for name in [*VALUES, *LATER, *QUERIES] if name == "xml" or available(server, name)]
    tested = {one(server, "SELECT %s::regtype::oid::bigint", name) for name in there}
    assert len(found) > 70
    for oid, name, sends in found:
        if oid in tested:
            assert name not in WITHHELD
        else:
            assert WITHHELD[name], f"{name} is neither tested nor excluded"
            assert sends == ("no binary format" not in WITHHELD[name])
    arrays = server.execute("SELECT oid::bigint, typelem::bigint FROM pg_type WHERE oid < 10000 AND typcategory = 'A' "
                            "AND typsend = 'array_send'::regproc AND typelem <> 'cstring'::regtype")  # fmt: skip
    for oid, element in arrays:
        assert (BUILTIN_TYPES[oid].kind, BUILTIN_TYPES[oid].of) == (Kind.ARRAY, element)
    for oid, subtype, multirange in server.execute(
        "SELECT rngtypid::bigint, rngsubtype::bigint, rngmultitypid::bigint FROM pg_range WHERE rngtypid < 10000"
    ):
        assert (BUILTIN_TYPES[oid].kind, BUILTIN_TYPES[oid].of) == (Kind.RANGE, subtype)
        assert (BUILTIN_TYPES[multirange].kind, BUILTIN_TYPES[multirange].of) == (Kind.MULTIRANGE, oid)
    delimiters = server.execute(
        "SELECT oid::bigint, typdelim FROM pg_type WHERE oid < 10000 AND typtype = 'b'"
    )
    assert {oid for oid, mark in delimiters if mark != ","} == {
        oid for oid, entry in BUILTIN_TYPES.items() if entry.delimiter != ","
    } | {oid for oid, entry in BUILTIN_TYPES.items() if entry.name == "_box"}


USER_TYPES = """
CREATE TYPE tb.mood AS ENUM ('sad', 'ok "then"', 'ok  then', 'NULL', ' ');
CREATE DOMAIN tb.age AS int4 CHECK (VALUE > 0);
CREATE DOMAIN tb.elder AS tb.age;
CREATE DOMAIN tb.note AS text;
CREATE DOMAIN tb.moods AS tb.mood[];
CREATE DOMAIN tb.corner AS box;
CREATE TYPE tb.inner AS (a int, gone text, m tb.mood, t text);
ALTER TYPE tb.inner DROP ATTRIBUTE gone;
CREATE TYPE tb.outer AS (i tb.inner, l tb.inner[], e tb.elder, d date);
ALTER TYPE tb.outer ADD ATTRIBUTE late numeric(4,2);
CREATE DOMAIN tb.checked AS tb.outer;
CREATE TYPE tb.noterange AS RANGE (SUBTYPE = text);
CREATE TYPE tb.agerange AS RANGE (SUBTYPE = tb.age);
CREATE TABLE tb.t (a int, b text, c tb.mood);
ALTER TABLE tb.t DROP COLUMN a;
CREATE TYPE tb.empty AS ();
"""
INNER = "ROW(7, 'sad', 'q\"uo\\te')::tb.inner"
USER_VALUES = [
    "SELECT '{1 2,\"\",NULL}'::int2vector[]",
    "SELECT '[0:1]={1 2,3}'::oidvector[]",
    "SELECT unnest(enum_range(NULL::tb.mood))",
    "SELECT enum_range(NULL::tb.mood)",
    "SELECT 5::tb.age UNION ALL SELECT 7::tb.elder::tb.age",
    "SELECT 5::tb.elder",
    "SELECT 'a\"'::tb.note",
    "SELECT '{sad,NULL}'::tb.moods",
    'SELECT \'{"{sad}","[3:4]={ok  then,sad}",NULL}\'::tb.moods[]',
    "SELECT '{(1,2),(3,4);NULL}'::tb.corner[]",
    f"SELECT {INNER}",
    f"SELECT ARRAY[{INNER}, NULL, ROW(NULL, NULL, NULL)::tb.inner, ROW(NULL, 'NULL', '')::tb.inner]",
    f"SELECT ROW({INNER}, ARRAY[{INNER}], 3, '0044-03-15 BC', 1.5)::tb.outer",
    f"SELECT ROW({INNER}, '{{}}', NULL, 'infinity', 'NaN')::tb.checked",
    f"SELECT ARRAY[ROW({INNER}, ARRAY[{INNER}], 3, 'infinity', 'NaN')::tb.checked]",
    "SELECT x::tb.noterange FROM (VALUES ('empty'), ('[a,b)'), ('[\"\",\"]\"]'), ('(,\" \")'), ('[\"\\\"\",)')) y (x)",
    'SELECT ARRAY[\'[a,b)\'::tb.noterange, \'["a\\\\,","b\\""]\']',
    "SELECT tb.notemultirange('[a,b)', '[\"c \",d)')",
    "SELECT x::tb.agerange FROM (VALUES ('[1,5]'), ('(,7)'), ('empty')) y (x)",
    "SELECT ARRAY['{[1,5],[7,9)}'::tb.agemultirange, '{}']",
    "SELECT ROW('b', 'sad')::tb.t",
    "SELECT ARRAY[ROW('b', NULL)::tb.t]",
    "SELECT ROW()::tb.empty",
]


def test_types_of_the_user(server: Connection, catalog: TypeCatalog) -> None:
    server.execute(USER_TYPES)
    load_types(server, catalog)
    for query in USER_VALUES:
        agree(server, catalog, query)
    assert not any(withheld_from_binary(one(server, f"SELECT pg_typeof(v)::oid::bigint FROM ({q}) q (v)"), catalog)
                   for q in USER_VALUES)  # fmt: skip
    outer = catalog.get(one(server, "SELECT 'tb.outer'::regtype::oid::bigint"))
    assert outer is not None
    assert len(outer.fields) == 5


def test_types_that_the_catalog_was_not_told_of(server: Connection) -> None:
    server.execute("CREATE TYPE tb.late AS ENUM ('x'); CREATE DOMAIN tb.whole AS int8")
    data, oid = server.execute(
        "SELECT enum_send('x'::tb.late), 'tb.late'::regtype::oid::bigint"
    ).fetchone() or (b"", 0)
    bare = TypeCatalog()
    assert bare.lacks(oid)
    with pytest.raises(TextError, match="not in the source's catalog"):
        binary_text(data, oid, bare)
    bare.note(oid, "tb", "late")
    with pytest.raises(TextError, match=r"tb\.late, which is not in the source's catalog"):
        binary_text(data, oid, bare)
    assert bare.lacks(oid)
    whole = one(server, "SELECT 'tb.whole'::regtype::oid::bigint")
    bare.note(whole, "pg_catalog", "int8")  # what pgoutput says of a domain
    assert (binary_text(bytes(7) + b"\5", whole, bare), bare.lacks(whole)) == ("5", False)
    load_types(server, bare)
    assert binary_text(data, oid, bare) == "x"
    bare.note(oid, "tb", "late")  # says less than what is known
    assert binary_text(data, oid, bare) == "x"


def test_names_behind_numbers_are_withheld(server: Connection, catalog: TypeCatalog) -> None:
    for name in [name for name, why in WITHHELD.items() if "name that only the server knows" in why]:
        if one(server, f"SELECT to_regtype('{name}') IS NULL"):
            continue  # a type of newer servers
        oid, zero = server.execute(
            f"SELECT '{name}'::regtype::oid::bigint, '0'::{name}::text"
        ).fetchone() or (0, "")
        assert binary_text(bytes(4), oid, catalog) == zero
        with pytest.raises(TextError, match="only the server knows"):
            binary_text(b"\0\0\0\1", oid, catalog)
        assert "only the server knows" in withheld_from_binary(oid, catalog)
    oid = one(server, "SELECT 'aclitem[]'::regtype::oid::bigint")
    assert "no binary format" in withheld_from_binary(oid, catalog)
    assert withheld_from_binary(1033, catalog) == ""
    assert "lc_monetary" in withheld_from_binary(790, TypeCatalog())
    assert withheld_from_binary(790, catalog) == ""


def test_an_extension_by_its_send_function(server: Connection, catalog: TypeCatalog) -> None:
    try:
        server.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA tb")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server was installed without pgvector, which the wheel's has")
    load_types(server, catalog)
    agree(server, catalog, "SELECT t::tb.vector FROM (VALUES ('[1,2.5,-0]'), ('[1e-30,3e30]')) x (t)")
    agree(server, catalog, "SELECT ARRAY['[1,2.5]'::tb.vector]")
    oid = one(server, "SELECT 'tb.sparsevec'::regtype::oid::bigint")
    assert "does not know" in withheld_from_binary(oid, catalog)


CONTRIB_VALUES = {
    "hstore": ["", '"a"=>"1", "b"=>NULL', '"q\\"uo"=>"back\\\\slash", ""=>"", "ü"=>"=>,"'],
    "citext": ["", "ÄbC", '"'],
    "ltree": ["", "Top.Science_1"],
    "lquery": ["Top.*{1,2}.a|b@"],
    "ltxtquery": ["a & !b*@"],
    "cube": ["(1,2),(3,4.5)", "(1)", "(0.1,-0)", "()"],
    "ean13": ["9780393040029"],
    "seg": ["1 .. 2"],
    "lo": ["17"],
    "xml": ['<?xml version="1.0" encoding="latin1" standalone="yes"?><a/>', "x"],
}


def test_contributed_types_alone_and_inside_others(database_on: Callable[[Any], Database]) -> None:
    with psycopg.connect(database_on(15).dsn, autocommit=True, options=OPTIONS) as connection:
        for extension in ("hstore", "citext", "ltree", "cube", "isn", "seg", "lo"):
            connection.execute(f"CREATE EXTENSION {extension}")
        known = load_types(connection)
        for sql_type, texts in CONTRIB_VALUES.items():
            oid = one(connection, "SELECT %s::regtype::oid::bigint", sql_type)
            assert withheld_from_binary(oid, known) == ""
            if not one(connection, "SELECT typsend <> 0 FROM pg_type WHERE oid = %s", oid):
                array = one(connection, "SELECT typarray::bigint FROM pg_type WHERE oid = %s", oid)
                assert "no binary format" in withheld_from_binary(array, known)
            elif sql_type != "xml" or has_xml(connection):
                values = rows_of(connection, sql_type, texts)
                agree(connection, known, values)
                agree(connection, known, f"SELECT ARRAY[v, NULL] FROM ({values}) q (v)")


def test_the_oldest_server_writes_the_same(database_on: Callable[[Any], Database]) -> None:
    later = {
        '"char"',
        "interval",
        "numeric(4,-2)",
        "numeric(3,5)",
    }  # octal, infinity, such scales: 16, 17, 15
    with psycopg.connect(database_on(14).dsn, autocommit=True, options=OPTIONS) as connection:
        known = load_types(connection)
        for sql_type in VALUES.keys() - later:
            agree(connection, known, rows_of(connection, sql_type, VALUES[sql_type]))


def has_xml(connection: Connection) -> bool:
    try:
        return bool(one(connection, "SELECT '<a/>'::xml IS NOT NULL"))
    except psycopg.errors.FeatureNotSupported:
        return False


doubles = st.integers(0, 2**64 - 1).map(lambda n: struct.unpack("<d", n.to_bytes(8, "little"))[0])
digits = st.text("0123456789", min_size=1, max_size=60)


@oracle
@given(data=st.data())
def test_generated_values(server: Connection, catalog: TypeCatalog, data: Any) -> None:
    generated: dict[str, st.SearchStrategy[str]] = {
        "float8": st.one_of(doubles, st.floats(), st.floats(1e14, 1e26)).map(repr),
        "float4": st.one_of(st.floats(width=32), st.floats(2**20, 2**40, width=32)).map(repr),
        "numeric": st.builds("{}{}.{}".format, st.sampled_from(["", "-"]), digits, digits),
        "numeric(38,10)": st.builds("{}{}.{}".format, st.sampled_from(["", "-"]), st.text("0123456789", min_size=1, max_size=28), digits),
        "interval": st.builds("{} mons {} days {} us".format, *[st.integers(-50, 50)] * 2, st.integers(-(10**12), 10**12)),
        "inet": st.builds(lambda words, bits: ":".join(f"{w:x}" for w in words) + f"/{bits}",
                          st.lists(st.sampled_from([0, 0, 0, 1, 0xFFFF, 0x1234]), min_size=8, max_size=8), st.integers(0, 128)),
        "text[]": st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)).map(
            lambda texts: "{" + ",".join('"' + t.replace("\\", "\\\\").replace('"', '\\"') + '"' for t in texts) + "}"),
        "date": st.integers(-1_700_000, 40_000_000).map(lambda n: f"J{n + 2_440_588}"),
        "varbit": st.text("01", max_size=40),
    }  # fmt: skip
    for sql_type, strategy in generated.items():
        texts = data.draw(st.lists(strategy, min_size=20, max_size=40))
        typmod = one(server, "SELECT coalesce(to_regtypemod(%s), -1)", sql_type)
        agree(server, catalog, rows_of(server, sql_type, texts), typmod)
