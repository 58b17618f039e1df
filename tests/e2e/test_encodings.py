# ruff: noqa: E501  (a statement is read as a line)
"""Databases in other encodings: names and values come as they are, and both sides are found equal, or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from slotlake import Pipeline
from tests.conftest import Database, drop_database
from tests.e2e.oracle import differences, pipeline_file

pytestmark = pytest.mark.timeout(600)

# Encoding → letters that it has. (Bytes that are no text at all are another matter.)
LETTERS = {"EUC_JP": "日本語"}
LETTERS_LONG = {"LATIN1": "éÿ½", "WIN1252": "€œ", "KOI8R": "жЫ", "EUC_KR": "한국"}
if os.environ.get("SLOTLAKE_TEST_LONG"):
    LETTERS |= LETTERS_LONG
SETUP = r"""
CREATE TYPE "mood_{x}" AS ENUM ('{x}', 'fine', '{y}\');
CREATE TABLE "t_{x}" ("id_{x}" text PRIMARY KEY, "v {y}" text, m "mood_{x}", a text[], j jsonb, b bytea, c "char", n numeric);
CREATE TABLE bag (v text, m "mood_{x}"); ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE sifted (id int PRIMARY KEY, v text); ALTER TABLE sifted REPLICA IDENTITY FULL;
INSERT INTO "t_{x}" SELECT '{x}' || g, '{y}\' || g, '{x}', ARRAY['{y}', 'a\b', NULL], '{{"{x}": "{y}"}}', '\x00ff5c', '\', g FROM generate_series(1, 200) g;
INSERT INTO bag SELECT '{x}' || g % 3, '{y}\' FROM generate_series(1, 20) g;
INSERT INTO sifted SELECT g, repeat('{x}', g) FROM generate_series(1, 9) g;
"""
CHANGED = r"""
UPDATE "t_{x}" SET "v {y}" = '{x}{y}' WHERE "id_{x}" = '{x}7'; DELETE FROM "t_{x}" WHERE "id_{x}" = '{x}8';
UPDATE "t_{x}" SET "id_{x}" = '{y}' WHERE "id_{x}" = '{x}9'; INSERT INTO "t_{x}" ("id_{x}", m) VALUES ('{x}', 'fine');
INSERT INTO bag VALUES ('{y}', '{x}'); DELETE FROM bag WHERE v = '{x}1'; UPDATE sifted SET v = v || '{y}'
"""


@contextmanager
def _encoded(pg: Any, encoding: str) -> Iterator[Database]:
    database = Database(pg, f"encoded_{os.getpid()}_{encoding.lower()}")
    name = sql.Identifier(database.name)
    with psycopg.connect(pg.dsn(), autocommit=True) as admin:
        command = "CREATE DATABASE {} ENCODING {} LOCALE 'C' TEMPLATE template0"
        admin.execute(sql.SQL(command).format(name, sql.Literal(encoding)))
    try:
        yield database
    finally:
        drop_database(pg, database.name)


@pytest.mark.parametrize("encoding", LETTERS)
def test_from_the_copy_to_recover(pg: Any, session: Any, tmp_path: Path, encoding: str) -> None:
    letters = LETTERS[encoding]
    names = {"x": letters, "y": letters[::-1]}
    table = f'"t_{letters}"'
    with _encoded(pg, encoding) as database:
        _run(database, SETUP.format(**names))
        file = pipeline_file(tmp_path, database, [table, "bag", "sifted"])
        text = file.read_text().replace(
            "'sifted': {}", f"'sifted': {{filter: \"v <> '{letters}' AND length(v) < 9\"}}"
        )
        file.write_text(text)
        with Pipeline.open(file) as pipeline:
            pipeline.init()
            assert pipeline.verify().equal
            _run(database, CHANGED.format(**names))
            pipeline.sync()
            assert differences(database, pipeline, [table, "bag"]) == {}
            assert [each.equal for each in pipeline.verify().tables.values()] == [True] * 3
            where = f"\"v {names['y']}\" = '{letters}{names['y']}'"
            assert _amended(pipeline.backfill([table], where=where, dry_run=True)) == (0, 0, 0)
            assert _amended(pipeline.backfill([table], key_range=f"{letters}1..{letters}5")) == (0, 0, 0)
            _lose_slot(database, pipeline)
            _run(
                database,
                f"UPDATE {table} SET n = 7 WHERE \"id_{letters}\" IN ('{letters}1', '{letters}'); DELETE FROM bag WHERE v = '{names['y']}'",
            )
            done = pipeline.recover(carry_out=True)
            assert {each.table: each.rows for each in done.tables} == {
                f"public.{table}": 2,
                "public.bag": 1,
                "public.sifted": 0,
            }
            assert pipeline.verify().equal
            assert pipeline.recover().plan == []


def _amended(report: Any) -> tuple[int, int, int]:
    (found,) = report.tables
    return found.inserted, found.changed, found.deleted


def _lose_slot(database: Database, pipeline: Any) -> None:
    _run(database, f"SELECT pg_drop_replication_slot('{pipeline.source.slot}')")


def _run(database: Database, statements: str) -> None:
    with database.connect(client_encoding="UTF8") as connection:
        connection.execute("SET standard_conforming_strings = on")
        cursor = connection.execute(statements.encode())
        while cursor.nextset():
            pass
