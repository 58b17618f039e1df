"""Lists and structs made of what a real server prints: nothing is lost, and what fits is what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotlake.decoder.errors import LakeError
from slotlake.decoder.types.representations import AS_TEXT, as_list, as_range, as_record, representation_of
from slotlake.decoder.types.table import column_type, from_text, sql_text
from slotlake.infra.local.postgres import EmbeddedPostgres

OPTIONS = (
    "-c DateStyle=ISO -c extra_float_digits=1 -c TimeZone=UTC -c bytea_output=hex -c IntervalStyle=postgres"
)
Connection = psycopg.Connection[tuple[Any, ...]]
oracle = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
texts = st.one_of(
    st.text("ab,;{}()[]\"\\ \t\n\v'üNUL", max_size=6),
    st.sampled_from(["NULL", "null", "Null", "", "empty", "\\", '"', "{}", "(,)", " "]),
)
MONEY = ((10 << 16) | 2) + 4


@pytest.fixture(scope="module")
def server(pg: EmbeddedPostgres) -> Iterator[Connection]:
    with psycopg.connect(pg.dsn(), autocommit=True, options=OPTIONS) as connection:
        connection.execute(
            "CREATE TYPE forms_row AS (a int, b text, c date, d numeric(10,2));"
            "CREATE TYPE forms_range AS RANGE (subtype = text)"
        )
        yield connection
        connection.execute("DROP TYPE forms_row, forms_range")


def all_printed(server: Connection, made: str, values: list[tuple[Any, ...]]) -> list[str | None]:
    """The server's text of each; ``made``: SQL of a value."""
    query = f"SELECT x::text FROM (VALUES {', '.join([f'({made})'] * len(values))}) v (x)"
    parameters = [part for value in values for part in value]
    return [text for (text,) in server.execute(query, parameters).fetchall()]


def oid_of(server: Connection, name: str) -> int:
    ((oid,),) = server.execute("SELECT %s::regtype::oid::bigint", [name]).fetchall()
    return int(oid)


def kept(form: str, oid: int, typmod: int, values: list[str | None]) -> tuple[list[Any], list[str | None]]:
    """What the lake keeps of these texts; that it prints as they were is looked at for each."""
    ct = column_type(oid, typmod)
    how = representation_of(form, oid, typmod)
    typed, exact = how.keep(*from_text(pa.array(values, pa.string()), ct))
    assert typed.type == how.arrow
    assert how.text(typed, exact).to_pylist() == values
    beside: list[Any] = [None] * len(values) if exact is None else exact.to_pylist()
    for value, text, source in zip(typed.to_pylist(), beside, values, strict=True):
        assert (value is not None) + (text is not None) == (source is not None)
        assert text in {None, source}
    return typed.to_pylist(), beside


@oracle
@given(values=st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), texts), max_size=5)), min_size=5))
def test_arrays_of_texts_are_lists_of_the_same(server: Connection, values: list[Any]) -> None:
    printed = all_printed(server, "%s::text[]", [(value,) for value in values])
    typed, beside = kept(as_list(25, ","), 1009, -1, printed)
    assert typed == values
    assert not any(beside)


@oracle
@given(values=st.lists(st.tuples(texts, texts), min_size=5))
def test_ranges_of_texts_are_structs(server: Connection, values: list[tuple[str, str]]) -> None:
    bounds = [(min(pair, key=str.encode), max(pair, key=str.encode)) for pair in values]
    try:
        printed = all_printed(server, "forms_range(%s::text, %s::text, '[]')", bounds)
    except psycopg.errors.DataException:  # the default collation orders them the other way
        return
    typed, beside = kept(as_range(25), oid_of(server, "forms_range"), -1, printed)
    assert not any(beside)
    assert [(v["lower"], v["upper"], v["lower_inc"], v["upper_inc"], v["empty"]) for v in typed] == [
        (low, high, True, True, False) for low, high in bounds
    ]


@oracle
@given(values=st.lists(st.tuples(st.one_of(st.none(), texts), st.integers(-9, 9)), min_size=5))
def test_composites_are_structs(server: Connection, values: list[tuple[str | None, int]]) -> None:
    row = "ROW(%s, %s, '2026-11-21', 1.5)::forms_row"
    printed = all_printed(server, row, [(n, text) for text, n in values])
    typed, beside = kept(composite(), oid_of(server, "forms_row"), -1, printed)
    assert not any(beside)
    assert [(value["b"], value["a"]) for value in typed] == values


def composite() -> str:
    return as_record([("a", 23, -1), ("b", 25, -1), ("c", 1082, -1), ("d", 1700, MONEY)])


# SQL of one value, the form's type, and whether it fits.
EDGES: list[tuple[str, str, int, int, bool]] = [
    ("'{}'::int[]", as_list(23, ","), 1007, -1, True),
    ("'{1,NULL,-2147483648}'::int[]", as_list(23, ","), 1007, -1, True),
    ("'{{1,2},{3,4}}'::int[]", as_list(23, ","), 1007, -1, False),
    ("'[0:1]={1,2}'::int[]", as_list(23, ","), 1007, -1, False),
    ("'[1:2][2:2]={{1},{2}}'::int[]", as_list(23, ","), 1007, -1, False),
    ("'{t,f,NULL}'::bool[]", as_list(16, ","), 1000, -1, True),
    ("'{1.5,-0,NaN,-Infinity,1e300}'::float8[]", as_list(701, ","), 1022, -1, True),
    ("'{1.50,-1,NULL}'::numeric(10,2)[]", as_list(1700, ","), 1231, MONEY, True),
    ("'{1.50,NaN}'::numeric(10,2)[]", as_list(1700, ","), 1231, MONEY, False),
    ("'{1.50,NaN,1e40}'::numeric[]", as_list(1700, ","), 1231, -1, True),
    ("'{2026-11-21,NULL}'::date[]", as_list(1082, ","), 1182, -1, True),
    ("'{infinity}'::date[]", as_list(1082, ","), 1182, -1, False),
    ("'{\"0044-03-15 BC\"}'::date[]", as_list(1082, ","), 1182, -1, False),
    ("ARRAY['2026-11-21 12:00:00.5+01', NULL]::timestamptz[]", as_list(1184, ","), 1185, -1, True),
    ("ARRAY['\\x00ff', '', NULL]::bytea[]", as_list(17, ","), 1001, -1, True),
    ("ARRAY['(1,1),(0,0)', '(2,2),(1,1)']::box[]", as_list(603, ";"), 1020, -1, True),
    ("ARRAY['a'::char(3), 'b']::bpchar[]", as_list(1042, ","), 1014, -1, True),
    ("ARRAY['a']::name[]", as_list(19, ","), 1003, -1, True),
    ("ARRAY['{\"a\": [1, null]}', 'null']::jsonb[]", as_list(3802, ","), 3807, -1, True),
    ("ARRAY['1 day 02:00', NULL]::interval[]", as_list(1186, ","), 1187, -1, True),
    ("ARRAY[int4range(1,5), NULL, 'empty']", as_list(3904, ","), 3905, -1, True),
    ("'[1,5)'::int4range", as_range(23), 3904, -1, True),
    ("'empty'::int4range", as_range(23), 3904, -1, True),
    ("'(,)'::int4range", as_range(23), 3904, -1, True),
    ("'[,5)'::int8range", as_range(20), 3926, -1, True),
    ("'(1.5,2.50]'::numrange", as_range(1700), 3906, -1, True),
    ("'[NaN,NaN]'::numrange", as_range(1700), 3906, -1, True),
    ("'[2026-01-01,infinity)'::daterange", as_range(1082), 3912, -1, False),
    ("'[2026-01-01,2026-02-01)'::daterange", as_range(1082), 3912, -1, True),
    ("'[2026-01-01 00:00,2026-01-02 00:00:00.25]'::tsrange", as_range(1114), 3908, -1, True),
    ("'[\"0001-01-01 BC\",)'::tstzrange", as_range(1184), 3910, -1, False),
]  # fmt: skip


def test_every_edge_fits_or_is_kept_beside(server: Connection) -> None:
    for value, form, oid, typmod, fits in EDGES:
        ((text,),) = server.execute(f"SELECT {sql_text('v', oid)} FROM (SELECT {value} AS v) x").fetchall()
        typed, beside = kept(form, oid, typmod, [None, text])
        assert (beside == [None, None]) == fits, value
        assert (typed[1] is not None) == fits, value


def test_composites_of_another_shape_are_kept_beside(server: Connection) -> None:
    """As rows from before ALTER TYPE are, and as they come then."""
    values: list[str | None] = [
        "(1,x,,)",
        "(1,x)",
        "(1,x,,,5)",
        "(x,y,,)",
        "(1,,infinity,)",
        "(,,,NaN)",
        None,
    ]
    _, beside = kept(composite(), 99999, -1, values)
    assert [text is None for text in beside] == [True, False, False, False, False, False, True]


def test_a_value_is_kept_as_it_would_be_alone(server: Connection) -> None:
    """Whatever else is in its column: rows without a key are found again by what is kept of them."""
    values: list[str | None] = ["(1,x,,)", "(q,x,,)", "(2,y,2026-11-21,1.50)", "(,,infinity,)", None]
    together = list(zip(*kept(composite(), 99999, -1, values), strict=True))
    for value, found in zip(values, together, strict=True):
        ((typed,), (beside,)) = kept(composite(), 99999, -1, [value])
        assert (typed, beside) == found


def test_text_takes_every_value() -> None:
    values: list[str | None] = ["1.50", "NaN", None]
    assert kept(AS_TEXT, 1700, MONEY, values) == (values, [None] * 3)
    assert kept(AS_TEXT, 1082, -1, ["infinity", "2026-11-21"])[0] == ["infinity", "2026-11-21"]


def test_an_unknown_form_is_refused() -> None:
    for form in ('["map", 1]', "[]", "{", '["list", 23]'):
        with pytest.raises(LakeError, match="representation"):
            representation_of(form, 25, -1)
