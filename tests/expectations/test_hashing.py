"""Our row hash is PostgreSQL's, for every length, seed and byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotlake.expectations.hashing import chain, chain_sql, columns_hash_sql, hash_columns, hash_texts, sums

TEXT_OID = 25
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60)
SEEDS = st.integers(-(2**63), 2**63 - 1)
SHARED = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def server(pg: Any) -> Any:
    with psycopg.connect(pg.dsn(), autocommit=True) as connection:
        yield connection


def test_every_length_hashes_as_in_postgres(server: Any) -> None:
    texts = ["é"[: i % 2] + "x" * i for i in range(200)]
    rows = server.execute(
        "SELECT hashtextextended(t, s), s FROM unnest(%s::text[], %s::bigint[]) u(t, s)",
        [texts, [(-1) ** i * i * 2**55 for i in range(200)]],
    ).fetchall()
    ours = hash_texts(pa.array(texts), np.array([seed for _, seed in rows]))
    assert ours.tolist() == [hashed for hashed, _ in rows]


@SHARED
@given(st.lists(st.tuples(TEXTS, SEEDS), min_size=1, max_size=40))
def test_any_text_hashes_as_in_postgres(server: Any, cases: list[tuple[str, int]]) -> None:
    texts, seeds = [text for text, _ in cases], [seed for _, seed in cases]
    theirs = server.execute(
        "SELECT hashtextextended(t, s) FROM unnest(%s::text[], %s::bigint[]) u(t, s)", [texts, seeds]
    ).fetchall()
    assert hash_texts(pa.array(texts), np.array(seeds)).tolist() == [hashed for (hashed,) in theirs]


@SHARED
@given(st.lists(st.tuples(TEXTS, TEXTS, st.none() | TEXTS), min_size=1, max_size=20))
def test_rows_hash_as_in_postgres(server: Any, rows: list[tuple[str, str, str | None]]) -> None:
    columns = [pa.array([row[i] for row in rows], pa.string()) for i in range(3)]
    named = [(name, TEXT_OID) for name in "abc"]
    whole, keyless = (chain_sql(key, columns_hash_sql(named)) for key in (named[:2], []))
    theirs = server.execute(
        f"SELECT {whole}, {keyless} FROM unnest(%s::text[], %s::text[], %s::text[]) u(a, b, c)",
        [column.to_pylist() for column in columns],
    ).fetchall()
    x = hash_columns(columns)
    ours = list(zip(chain(columns[:2], x).tolist(), chain([], x).tolist(), strict=True))
    assert ours == theirs


@pytest.mark.fast
def test_null_empty_and_swapped_values_differ() -> None:
    rows = [("", None), (None, ""), (None, None), ("", ""), ("a", "b"), ("b", "a"), ("ab", ""), ("", "ab")]
    columns = [pa.array([row[i] for row in rows], pa.string()) for i in range(2)]
    assert len(set(hash_columns(columns).tolist())) == len(rows)


@pytest.mark.fast
def test_slices_of_an_array_hash_alike() -> None:
    texts = pa.array(["one", None, "three", "", "five"])
    seeds = np.arange(5)
    whole = hash_texts(texts, seeds)
    assert hash_texts(texts.slice(1, 3), seeds[1:4]).tolist() == whole[1:4].tolist()


@pytest.mark.fast
def test_sums_are_exact() -> None:
    extremes = np.array([2**63 - 1, 2**63 - 1, -(2**63), -(2**63), -1, 5])
    counts, totals = sums(np.array([0, 0, 1, 1, 2, 2]), extremes, 4)
    assert counts.tolist() == [2, 2, 2, 0]
    assert totals == [2**64 - 2, -(2**64), 4, 0]
