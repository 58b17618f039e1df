# ruff: noqa: E501  (a statement is read as a line)
"""What `regclass` and its like print today is known, whatever it names; what they printed once, is not."""

from __future__ import annotations

from slotlake.decoder.catalog.reg_texts import texts_without_object
from slotlake.decoder.server.source import connect
from tests.conftest import Database

SETUP = """
CREATE TABLE there (id int); CREATE TABLE "Odd ""name, {x}" (id int); CREATE SCHEMA far; CREATE TABLE far.off (id int); CREATE INDEX an_index ON there (id);
CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION twice(text) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION once() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE DOMAIN naming AS regclass; CREATE DOMAIN names AS regclass[]; CREATE TYPE pair AS (a regclass, b int); CREATE TYPE mood AS ENUM ('sad');
CREATE TABLE t (c regclass, cs regclass[], d naming, ds naming[], dd names, f regproc, g regprocedure, o regoper, oo regoperator, k regtype, ks regtype[],
                n regnamespace, r regrole, x regconfig, y regdictionary, l regcollation, p pair, plain text);
INSERT INTO t VALUES ('there', '{there,NULL,"\\"Odd \\"\\"name, {x}\\""}', 'far.off', '{far.off,pg_class}', '{an_index}', 'once', 'twice(int)', '||/', '+(int,int)',
                      'mood', '{int,timestamptz,mood[],t}', 'far', current_user::regrole, 'english', 'simple', '"C"', '(there,1)', 'gone');
INSERT INTO t VALUES ('0', '{0,4000000000}', '4000000000', '{}', '[2:3]={there,0}', (SELECT min(oid) FROM pg_proc WHERE proname = 'twice'), '0', '0', '0',
                      '0', '{0}', '0', '0', '0', '0', '0', '(,)', '');
INSERT INTO t SELECT n, NULL, NULL, NULL, NULL, n, n, n, n, n, NULL, n, n, n, n, n, NULL, NULL FROM (VALUES (4000000000::oid)) v (n)
"""


def _texts(database: Database) -> dict[str, tuple[int, set[str]]]:
    """By column: its type, and all values as the server prints them."""
    columns = database.execute(
        "SELECT attname, atttypid::bigint FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0"
    )
    with connect(database.dsn) as connection:
        return {
            name: (oid, {text for (text,) in connection.execute(f"SELECT {name}::text FROM t") if text})
            for name, oid in columns
        }


def test_what_is_printed_today_and_what_is_not(database: Database) -> None:
    for statement in SETUP.split(";\n"):
        database.execute(statement)
    types = _texts(database)
    assert len(types) == 18
    assert types["cs"][1] >= {'{there,NULL,"\\"Odd \\"\\"name, {x}\\""}'}
    with connect(database.dsn) as connection:
        assert texts_without_object(connection, dict(types.values())) == {}
        gone = {"c": "their", "cs": "{there,their}", "d": "off", "ds": "{far.off,their}", "dd": "{their}"}
        gone |= {"f": "thrice", "g": "twice(bigint)", "o": "|||", "oo": "+(text,integer)", "k": "moods"}
        gone |= {
            "ks": "{integer,moods}",
            "n": "farther",
            "r": "nobody",
            "x": "klingon",
            "y": "klingon",
            "l": '"X"',
        }
        asked = {types[name][0]: types[name][1] | {text} for name, text in gone.items()}
        assert texts_without_object(connection, asked) == {
            types[name][0]: {text} for name, text in gone.items()
        }
        others = {types[name][0]: {"their", "(their,1)"} for name in ("p", "plain")}
        assert texts_without_object(connection, others) == {}

        # A number stands for what has no name; once it has one, the number is not printed.
        number = str(connection.execute("SELECT 'there'::regclass::oid").fetchone()[0])  # type: ignore[index]
        assert texts_without_object(connection, {types["c"][0]: {number}}) == {types["c"][0]: {number}}
