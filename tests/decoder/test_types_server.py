"""PostgreSQL as the oracle of the table of types: what it prints is read, and printed the same."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotlake.decoder.types.table import column_type, from_text, sql_text, to_text
from slotlake.infra.local.postgres import EmbeddedPostgres

OPTIONS = (
    "-c DateStyle=ISO -c IntervalStyle=postgres -c extra_float_digits=1 -c TimeZone=UTC -c bytea_output=hex"
)
Connection = psycopg.Connection[tuple[Any, ...]]
oracle = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def server(pg: EmbeddedPostgres) -> Iterator[Connection]:
    with psycopg.connect(pg.dsn(), autocommit=True, options=OPTIONS) as connection:
        yield connection


def printed(server: Connection, values: list[str], sql_type: str, oid: int) -> list[str]:
    """What the server prints for these values."""
    inputs = f"SELECT n, t::{sql_type} AS v FROM unnest(%s::text[]) WITH ORDINALITY AS x (t, n)"
    query = f"SELECT {sql_text('v', oid)} FROM ({inputs}) y ORDER BY n"
    return [text for (text,) in server.execute(query, [values])]


def round_trip(server: Connection, values: list[str], sql_type: str) -> None:
    """Values to the server, its text to typed columns, and back to the same text."""
    query = "SELECT t, format_type(t, -1) FROM (SELECT %s::regtype::oid) x (t)"
    oid, _ = server.execute(query, [sql_type]).fetchone() or (0, "")
    typmod = server.execute("SELECT to_regtypemod(%s)", [sql_type]).fetchone()
    ct = column_type(oid, (typmod or (None,))[0] or -1)
    texts = printed(server, values, sql_type, oid)
    typed, exact = from_text(pa.array(texts, pa.string()), ct)
    again = to_text(typed, exact, ct).to_pylist()
    assert again == texts, [pair for pair in zip(again, texts, strict=True) if pair[0] != pair[1]]


doubles = st.one_of(
    st.floats(),
    st.integers(0, 2**64 - 1).map(lambda n: struct.unpack("<d", n.to_bytes(8, "little"))[0]),
    st.builds(lambda d, e: float(f"{d}e{e}"), st.integers(-(10**9), 10**9), st.integers(-40, 40)),
    st.builds(lambda m, e: float(m) * 2.0**e, st.integers(-(2**53), 2**53), st.integers(-80, 80)),
    st.builds(lambda e, d: 2.0**e + d * 2.0 ** (e - 52), st.integers(-1000, 1000), st.integers(-3, 3)),
    st.builds(lambda e, d: 5.0**e * d, st.integers(0, 40), st.integers(1, 1000)),
)


@oracle
@given(values=st.lists(doubles, min_size=50, max_size=200))
def test_float8_prints_as_the_server_does(server: Connection, values: list[float]) -> None:
    texts = printed(server, [repr(v) for v in values], "float8", 701)
    assert to_text(pa.array(values, pa.float64()), None, column_type(701, -1)).to_pylist() == texts
    round_trip(server, texts, "float8")


@oracle
@given(values=st.lists(st.integers(0, 2**32 - 1), min_size=50, max_size=200))
def test_float4_prints_as_the_server_does(server: Connection, values: list[int]) -> None:
    floats = [struct.unpack("<f", n.to_bytes(4, "little"))[0] for n in values]
    texts = printed(server, [repr(v) for v in floats], "float4", 700)
    assert to_text(pa.array(floats, pa.float32()), None, column_type(700, -1)).to_pylist() == texts
    round_trip(server, texts, "float4")


def test_every_power_of_two_five_and_ten_prints_as_the_server_does(server: Connection) -> None:
    values = [2.0**e for e in range(-1074, 1024)] + [
        float(f"{d}e{e}") for d in range(1, 10) for e in range(-323, 308)
    ]
    values += [float(d * 5**e) for e in range(30) for d in range(1, 200)]
    texts = printed(server, [repr(v) for v in values], "float8", 701)
    assert to_text(pa.array(values, pa.float64()), None, column_type(701, -1)).to_pylist() == texts
    small = [v for v in values if 1e-45 < v < 3e38]
    texts = printed(server, [repr(v) for v in small], "float4", 700)
    typed = pa.array(small, pa.float64()).cast(pa.float32(), safe=False)
    assert to_text(typed, None, column_type(700, -1)).to_pylist() == texts


numbers = st.one_of(st.integers(-(10**18), 10**18), st.integers(-(10**38) + 1, 10**38 - 1))
EDGES = {
    "date": [
        "infinity",
        "-infinity",
        "4714-11-24 BC",
        "0001-12-31 BC",
        "0001-01-01",
        "9999-12-31",
        "10000-01-01",
        "5874897-12-31",
    ],
    "timestamp": [
        "infinity",
        "-infinity",
        "4714-11-24 00:00:00 BC",
        "0001-01-01 00:00:00",
        "294276-12-31 23:59:59.999999",
    ],
    "timestamptz": [
        "infinity",
        "-infinity",
        "4714-11-24 00:00:00+00 BC",
        "0001-12-31 23:59:59.9 BC",
        "294276-12-31 23:59:59.999999+00",
    ],
}


@oracle
@given(values=st.lists(numbers, min_size=20, max_size=100), scale=st.integers(0, 38), data=st.data())
def test_numeric_round_trips(server: Connection, values: list[int], scale: int, data: Any) -> None:
    precision = data.draw(st.integers(max(scale, 1), 38))
    small = [v % 10**precision * (1 if v > 0 else -1) for v in values]
    texts = [
        f"{'-' if v < 0 else ''}{abs(v) // 10**scale}.{abs(v) % 10**scale:0{scale or 1}d}" for v in small
    ]
    texts = [t.partition(".")[0] if scale == 0 else t for t in texts]
    round_trip(server, [*texts, "NaN"], f"numeric({precision},{scale})")
    round_trip(server, [*texts, "NaN", "Infinity"], "numeric")


@oracle
@given(days=st.lists(st.integers(-1_700_000, 3_000_000), min_size=50, max_size=200))
def test_dates_round_trip(server: Connection, days: list[int]) -> None:
    query = "SELECT (date '1970-01-01' + n)::text FROM unnest(%s::int[]) n"
    round_trip(server, [text for (text,) in server.execute(query, [days])] + EDGES["date"], "date")


@oracle
@given(
    moments=st.lists(
        st.integers(-200_000_000_000_000_000, 270_000_000_000_000_000), min_size=50, max_size=200
    )
)
@pytest.mark.parametrize("sql_type", ["timestamp", "timestamptz"])
def test_timestamps_round_trip(server: Connection, sql_type: str, moments: list[int]) -> None:
    moment = f"{sql_type} '1970-01-01' + (n / 1000000) * interval '1 s' + (n %% 1000000) * interval '1 us'"
    query = f"SELECT ({moment})::text FROM unnest(%s::int8[]) n"
    round_trip(server, [text for (text,) in server.execute(query, [moments])] + EDGES[sql_type], sql_type)


@oracle
@given(values=st.lists(st.binary(max_size=40), min_size=1, max_size=50))
def test_bytea_round_trips(server: Connection, values: list[bytes]) -> None:
    round_trip(server, ["\\x" + v.hex() for v in values], "bytea")
    assert to_text(pa.array(values, pa.binary()), None, column_type(17, -1)).to_pylist() == [
        "\\x" + v.hex() for v in values
    ]


def test_integers_and_booleans_round_trip(server: Connection) -> None:
    for sql_type, bits in (("int2", 16), ("int4", 32), ("int8", 64)):
        round_trip(
            server, [str(s * 2**b + d) for b in range(bits - 1) for s in (1, -1) for d in (0, -1)], sql_type
        )
    for sql_type in ("oid", "xid"):
        round_trip(server, [str(2**b - 1) for b in range(33)], sql_type)
    round_trip(server, ["true", "false"], "boolean")


def test_texts_stay_as_they_are(server: Connection) -> None:
    samples = {
        "text": ["", "a b", "ü€😀", "\\x41"],
        "bpchar(5)": ["ab"],
        "json": ['{"b": 1,  "a": [null, 1.0]}'],
        "jsonb": ['{"b": 1,  "a": [null, 1.0]}'],
        "uuid": ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"],
        "interval": ["1 mon -2 days 03:04:05.6"],
        "int4range": ["[1,5]"],
        "text[]": ['{a,"b c",NULL}'],
        "timetz": ["01:02:03+05"],
        "money": ["12.50"],
    }
    for sql_type, values in samples.items():
        round_trip(server, values, sql_type)


SAMPLES = {
    "boolean": "true",
    '"char"': "é"[0:1],
    "name": "n",
    "xml": '<?xml version="1.0" encoding="latin1"?><a/>',
    "cidr": "10.0.0.0/8",
    "inet": "10.0.0.1",
    "character(4)": "ab",
    "character varying": "v",
    "text": "t",
    "int4": "1",
    "inet[]": "{10.0.0.1}",
    "boolean[]": "{t,f}",
    "bytea": "\\x00",
    "float8": "0.1",
    "numeric(4,2)": "1",
    "timestamptz": "2026-01-01",
    "json": "{}",
    "regclass": "pg_class",
    "pg_lsn": "0/10",
    "tsvector": "a b",
    "bit(3)": "101",
    "macaddr": "08:00:2b:01:02:03",
    "point": "(1,2)",
    "pg_node_tree": None,
    "pg_ndistinct": None,
    "pg_dependencies": None,
    "pg_mcv_list": None,
}


def test_sql_text_gives_the_output_function_of_every_type_with_a_cast_to_text(server: Connection) -> None:
    casts = server.execute("SELECT castsource::regtype::text FROM pg_cast WHERE casttarget = 'text'::regtype")
    missing = {name for (name,) in casts} - {s.split("(")[0] for s in SAMPLES}
    assert not missing, missing
    for sql_type, value in SAMPLES.items():
        if value is None or (sql_type == "xml" and not _has_xml(server)):
            continue
        oid = server.execute("SELECT %s::regtype::oid", [sql_type]).fetchone()
        assert oid is not None
        (expected,) = server.execute(f"SELECT format('%%s', %s::{sql_type})", [value]).fetchone() or ("",)
        assert printed(server, [value], sql_type, oid[0]) == [expected], sql_type
        null = server.execute(f"SELECT {sql_text(f'NULL::{sql_type}', oid[0])}").fetchone()
        assert null == (None,), sql_type


def test_sql_text_of_user_types_passes_by_their_own_casts(server: Connection) -> None:
    server.execute("DROP SCHEMA IF EXISTS st CASCADE; CREATE SCHEMA st")
    server.execute(
        "CREATE TYPE st.mood AS ENUM ('sad', 'ok'); CREATE DOMAIN st.flag AS boolean;"
        "CREATE TYPE st.pair AS (a int, b bool);"
        "CREATE FUNCTION st.loud(st.mood) RETURNS text LANGUAGE sql AS 'SELECT ''LOUD''';"
        "CREATE CAST (st.mood AS text) WITH FUNCTION st.loud(st.mood)"
    )
    for sql_type, value, text in [
        ("st.mood", "'sad'", "sad"),
        ("st.flag", "true", "t"),
        ("st.pair", "ROW(NULL, NULL)", "(,)"),
        ("st.pair", "ROW(1, true)", "(1,t)"),
        ("st.mood[]", "ARRAY['ok'::st.mood]", "{ok}"),
        ("st.pair", "NULL", None),
    ]:
        (oid,) = server.execute("SELECT %s::regtype::oid", [sql_type]).fetchone() or (0,)
        expression = sql_text(f"({value})::{sql_type}", oid)
        assert server.execute(f"SELECT {expression}").fetchone() == (text,), sql_type
    server.execute("DROP SCHEMA st CASCADE")


def _has_xml(server: Connection) -> bool:
    try:
        server.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True
