# ruff: noqa: E501  (a statement is read as a line)
"""What happens in a source, written from PostgreSQL's rules: one table (or a few) and steps per scenario.

All scenarios live in one database and take their steps together, one micro-batch after each, so that many
rules are tried at the price of few batches.  A transaction is one string; strings run one after another.
"""

from __future__ import annotations

from tests.e2e.scenario import Scenario, big
from tests.e2e.scenarios_identity import IDENTITIES

__all__ = ["SCENARIOS", "Scenario", "big"]

SCENARIOS: dict[str, Scenario] = {
    "plain changes": Scenario(
        ["plain"],
        "CREATE TABLE plain (id int PRIMARY KEY, v text, n numeric(10,2)); "
        "INSERT INTO plain SELECT g, 'v' || g, g / 7.0 FROM generate_series(1, 500) g",
        [
            [
                "INSERT INTO plain VALUES (1000, 'new', 1.5)",
                "UPDATE plain SET v = 'changed' WHERE id <= 10",
                "DELETE FROM plain WHERE id > 490 AND id < 1000",
            ],
            [
                "DELETE FROM plain WHERE id = 1; INSERT INTO plain VALUES (1, 'again', NULL)",
                "INSERT INTO plain VALUES (2000, 'x', 0)",
                "DELETE FROM plain WHERE id = 2000",
            ],
            [
                "BEGIN; INSERT INTO plain VALUES (3000, 'a', 1); UPDATE plain SET v = 'b' WHERE id = 3000; DELETE FROM plain WHERE id = 3000; INSERT INTO plain VALUES (3000, 'c', 2); COMMIT"
            ],
        ],
    ),
    "nothing is not empty": Scenario(
        ["nothing"],
        "CREATE TABLE nothing (id int PRIMARY KEY, a text, b bytea); INSERT INTO nothing VALUES (1, '', ''), (2, NULL, NULL), (3, 'x', '\\x00')",
        [
            [
                "UPDATE nothing SET a = NULL, b = NULL WHERE id = 1",
                "UPDATE nothing SET a = '', b = '' WHERE id = 2",
            ],
            ["INSERT INTO nothing VALUES (4, E'line\\nbreak\\ttab \\\\ \"q\" ''s''', '\\xdeadbeef')"],
        ],
    ),
    "unchanged toast": Scenario(
        ["toast"],
        f"CREATE TABLE toast (id int PRIMARY KEY, n int, big1 text, big2 text); INSERT INTO toast SELECT g, 0, {big(1)}, {big(2)} FROM generate_series(1, 20) g",
        [
            [
                "UPDATE toast SET n = 1 WHERE id <= 5",
                f"UPDATE toast SET big1 = {big(3)} WHERE id = 2",
                "UPDATE toast SET n = 2 WHERE id = 2",
                f"INSERT INTO toast VALUES (100, 0, {big(4)}, {big(5)})",
                "UPDATE toast SET n = 9 WHERE id = 100",
            ],
            [
                "UPDATE toast SET id = 201 WHERE id = 1",
                "UPDATE toast SET id = 202, n = 7 WHERE id = 2",
                "UPDATE toast SET id = 302 WHERE id = 202",
                f"UPDATE toast SET big2 = {big(6)}, id = 303 WHERE id = 3",
                "UPDATE toast SET id = 403 WHERE id = 303",
            ],
            [
                "BEGIN; UPDATE toast SET id = -4 WHERE id = 4; UPDATE toast SET id = 4 WHERE id = 5; UPDATE toast SET id = 5 WHERE id = -4; COMMIT",
                "UPDATE toast SET id = 6000 WHERE id = 6",
                "UPDATE toast SET id = 6 WHERE id = 6000",
                f"DELETE FROM toast WHERE id = 7; INSERT INTO toast VALUES (7, 1, {big(8)}, NULL)",
                "UPDATE toast SET n = 3 WHERE id = 7",
            ],
            [
                "UPDATE toast SET big1 = NULL WHERE id = 8",
                "UPDATE toast SET big1 = 'short' WHERE id = 9",
                "UPDATE toast SET n = 5 WHERE id = 9",
                "BEGIN; UPDATE toast SET id = 1010 WHERE id = 10; DELETE FROM toast WHERE id = 1010; COMMIT",
            ],
        ],
    ),
    "keys that move": Scenario(
        ["moving"],
        "CREATE TABLE moving (id int PRIMARY KEY, v text); INSERT INTO moving SELECT g, 'r' || g FROM generate_series(1, 300) g",
        [
            [
                "UPDATE moving SET id = id + 1000",
                "UPDATE moving SET id = id + 1000 WHERE id < 1100",
                "DELETE FROM moving WHERE id = 1150",
            ],
            [
                "BEGIN; UPDATE moving SET id = 1 WHERE id = 1200; INSERT INTO moving VALUES (1200, 'put in its place'); COMMIT",
                "BEGIN; DELETE FROM moving WHERE id = 1201; UPDATE moving SET id = 1201 WHERE id = 1202; COMMIT",
            ],
            ["UPDATE moving SET id = -id", "UPDATE moving SET id = -id WHERE id < -1250"],
        ],
    ),
    "truncate": Scenario(
        ["t_parent", "t_child", "t_alone"],
        "CREATE TABLE t_parent (id int PRIMARY KEY, v text); CREATE TABLE t_child (id int PRIMARY KEY, p int REFERENCES t_parent); CREATE TABLE t_alone (id int PRIMARY KEY, v text); "
        "INSERT INTO t_parent SELECT g, 'p' FROM generate_series(1, 50) g; INSERT INTO t_child SELECT g, g FROM generate_series(1, 50) g; INSERT INTO t_alone SELECT g, 'a' FROM generate_series(1, 50) g",
        [
            [
                "TRUNCATE t_alone",
                "INSERT INTO t_alone VALUES (1, 'after')",
                "UPDATE t_alone SET v = 'after that' WHERE id = 1",
            ],
            [
                "BEGIN; INSERT INTO t_alone VALUES (2, 'gone'); TRUNCATE t_alone; INSERT INTO t_alone VALUES (3, 'stays'); COMMIT",
                "TRUNCATE t_parent CASCADE",
            ],
            [
                "INSERT INTO t_parent VALUES (7, 'new')",
                "INSERT INTO t_child VALUES (8, 7)",
                "BEGIN; SAVEPOINT s; TRUNCATE t_alone; ROLLBACK TO s; INSERT INTO t_alone VALUES (4, 'four'); COMMIT",
                "TRUNCATE t_alone, t_child RESTART IDENTITY",
            ],
        ],
    ),
    "composite and other keys": Scenario(
        [
            "k_pair",
            "k_text",
            "k_uuid",
            "k_time",
            "k_numeric",
            "k_free_numeric",
            "k_bytes",
            "k_bool",
            "k_date",
            "k_float",
            "k_char",
        ],
        "CREATE TABLE k_pair (a int, b text, v int, PRIMARY KEY (b, a)); INSERT INTO k_pair SELECT g, 'b' || (g % 3), 0 FROM generate_series(1, 30) g; "
        "CREATE TABLE k_text (k text PRIMARY KEY, v int); INSERT INTO k_text VALUES ('', 0), (' ', 0), ('é', 0), ('e', 0), ('E', 0), ('日本', 0); "
        "CREATE TABLE k_uuid (k uuid PRIMARY KEY, v int); INSERT INTO k_uuid SELECT md5(g::text)::uuid, 0 FROM generate_series(1, 9) g; "
        "CREATE TABLE k_time (k timestamptz PRIMARY KEY, v int); INSERT INTO k_time VALUES ('2024-01-01', 0), ('infinity', 0), ('-infinity', 0), ('0044-03-15 BC', 0), ('12024-01-01', 0), ('2024-01-01 00:00:00.000001', 0); "
        "CREATE TABLE k_numeric (k numeric(12,3) PRIMARY KEY, v int); INSERT INTO k_numeric VALUES (1.5, 0), (-1.5, 0), ('NaN', 0), (0, 0); "
        "CREATE TABLE k_free_numeric (k numeric PRIMARY KEY, v int); INSERT INTO k_free_numeric VALUES (1.0, 0), (2.50, 0), (1e40, 0), ('NaN', 0), ('Infinity', 0); "
        "CREATE TABLE k_bytes (k bytea PRIMARY KEY, v int); INSERT INTO k_bytes VALUES ('', 0), ('\\x00', 0), ('\\x0000', 0); "
        "CREATE TABLE k_bool (k bool PRIMARY KEY, v int); INSERT INTO k_bool VALUES (true, 0); "
        "CREATE TABLE k_date (k date PRIMARY KEY, v int); INSERT INTO k_date VALUES ('2024-02-29', 0), ('infinity', 0), ('0001-01-01', 0), ('0001-12-31 BC', 0), ('9999-12-31', 0), ('10000-01-01', 0); "
        "CREATE TABLE k_float (k float8 PRIMARY KEY, v int); INSERT INTO k_float VALUES (0.1, 0), ('NaN', 0), ('Infinity', 0), (1e300, 0); "
        "CREATE TABLE k_char (k char(5) PRIMARY KEY, v int); INSERT INTO k_char VALUES ('a', 0), ('b  ', 0)",
        [
            [
                f"UPDATE {t} SET v = v + 1"
                for t in (
                    "k_pair",
                    "k_text",
                    "k_uuid",
                    "k_time",
                    "k_numeric",
                    "k_free_numeric",
                    "k_bytes",
                    "k_bool",
                    "k_date",
                    "k_float",
                    "k_char",
                )
            ],
            [
                "UPDATE k_pair SET b = 'z' WHERE a % 2 = 0",
                "DELETE FROM k_text WHERE k IN ('', 'E')",
                "DELETE FROM k_time WHERE k = 'infinity' OR k = '0044-03-15 BC'",
                "DELETE FROM k_numeric WHERE k = 'NaN'",
                "UPDATE k_free_numeric SET k = 1.00 WHERE k = 1",
                "DELETE FROM k_bytes WHERE k = '\\x00'",
                "INSERT INTO k_bool VALUES (false, 3)",
                "UPDATE k_date SET k = '-infinity' WHERE k = '9999-12-31'",
                "DELETE FROM k_date WHERE k = '10000-01-01'",
                "DELETE FROM k_float WHERE k = 'NaN'",
                "UPDATE k_char SET k = 'c' WHERE k = 'a'",
            ],
            [
                "INSERT INTO k_time VALUES ('infinity', 7)",
                "INSERT INTO k_numeric VALUES ('NaN', 7)",
                "UPDATE k_free_numeric SET v = 9 WHERE k = 1",
                "UPDATE k_time SET k = '2025-01-01' WHERE k = '-infinity'",
            ],
        ],
    ),
    "replica identities": Scenario(
        ["ri_full", "ri_index", "ri_insert_only"],
        "CREATE TABLE ri_full (id int PRIMARY KEY, a text, b text); ALTER TABLE ri_full REPLICA IDENTITY FULL; "
        f"INSERT INTO ri_full SELECT g, 'a', {big(11)} FROM generate_series(1, 20) g; "
        "CREATE TABLE ri_index (x int, y text NOT NULL, z text); CREATE UNIQUE INDEX ri_index_y ON ri_index (y); ALTER TABLE ri_index REPLICA IDENTITY USING INDEX ri_index_y; "
        "INSERT INTO ri_index SELECT g, 'y' || g, NULL FROM generate_series(1, 20) g; "
        "CREATE TABLE ri_insert_only (a int, b text); INSERT INTO ri_insert_only VALUES (1, 'same'), (1, 'same'), (NULL, NULL)",
        [
            [
                "UPDATE ri_full SET a = 'b' WHERE id < 5",
                "UPDATE ri_full SET id = 105 WHERE id = 5",
                "DELETE FROM ri_full WHERE id = 6",
                "UPDATE ri_index SET z = 'new' WHERE x < 5",
                "UPDATE ri_index SET y = 'moved' WHERE x = 5",
                "DELETE FROM ri_index WHERE x = 6",
                "INSERT INTO ri_insert_only VALUES (1, 'same'), (NULL, NULL)",
            ],
            [
                "UPDATE ri_full SET id = 205, a = NULL WHERE id = 105",
                "UPDATE ri_index SET x = NULL WHERE y = 'moved'",
            ],
        ],
    ),
    "odd names": Scenario(
        ['"Odd Schema"."Weird.Name/x"', '"select"', "commits", '"Straße"'],
        'CREATE SCHEMA "Odd Schema"; CREATE TABLE "Odd Schema"."Weird.Name/x" ("Id" int PRIMARY KEY, id text, "select" int, "a b.c`d" text, "n0" int, "ü" text); '
        "INSERT INTO \"Odd Schema\".\"Weird.Name/x\" VALUES (1, 'one', 1, 'x', 1, 'ü'); "
        'CREATE TABLE "select" ("from" int PRIMARY KEY, "where" text); CREATE TABLE commits (id int PRIMARY KEY, lsn text); INSERT INTO commits VALUES (1, \'mine\'); '
        'CREATE TABLE "Straße" (id int PRIMARY KEY, "id__exact" text, d date); INSERT INTO "Straße" VALUES (1, \'a column of that name\', \'infinity\')',
        [
            [
                'UPDATE "Odd Schema"."Weird.Name/x" SET id = \'two\', "a b.c`d" = NULL',
                'INSERT INTO "Odd Schema"."Weird.Name/x" VALUES (2, NULL, NULL, NULL, NULL, NULL)',
                "INSERT INTO \"select\" VALUES (1, 'w')",
                "UPDATE commits SET lsn = 'still mine'",
                'UPDATE "Straße" SET "id__exact" = \'y\'',
            ],
            ['DELETE FROM "select"', "INSERT INTO commits VALUES (2, NULL)"],
        ],
    ),
    "savepoints and rollbacks": Scenario(
        ["savepoints"],
        "CREATE TABLE savepoints (id int PRIMARY KEY, v text)",
        [
            [
                "BEGIN; INSERT INTO savepoints VALUES (1, 'a'); SAVEPOINT s; INSERT INTO savepoints VALUES (2, 'b'); ROLLBACK TO s; INSERT INTO savepoints VALUES (3, 'c'); COMMIT",
                "BEGIN; INSERT INTO savepoints VALUES (4, 'd'); ROLLBACK",
            ],
            [
                "BEGIN; SAVEPOINT a; UPDATE savepoints SET v = 'x'; SAVEPOINT b; DELETE FROM savepoints WHERE id = 1; ROLLBACK TO b; RELEASE a; COMMIT"
            ],
        ],
    ),
    "many columns": Scenario(
        ["wide"],
        "DO $$ BEGIN EXECUTE 'CREATE TABLE wide (id int PRIMARY KEY, ' || (SELECT string_agg('c' || g || ' text', ', ') FROM generate_series(1, 300) g) || ')'; END $$; INSERT INTO wide (id, c1, c300) VALUES (1, 'first', 'last')",
        [["UPDATE wide SET c150 = 'middle'", "INSERT INTO wide (id, c2) VALUES (2, 'second')"]],
    ),
    "empty tables": Scenario(
        ["hollow", "no_columns_but_key"],
        "CREATE TABLE hollow (id int PRIMARY KEY, v text); CREATE TABLE no_columns_but_key (id bigint PRIMARY KEY)",
        [
            ["TRUNCATE hollow", "INSERT INTO no_columns_but_key SELECT generate_series(1, 10)"],
            [
                "DELETE FROM no_columns_but_key WHERE id = 3",
                "UPDATE no_columns_but_key SET id = 33 WHERE id = 4",
            ],
        ],
    ),
    "types": Scenario(
        ["types"],
        "CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE DOMAIN positive AS int CHECK (VALUE > 0); CREATE TYPE pair AS (x int, y text); "
        'CREATE TABLE types (id int PRIMARY KEY, a smallint, b bigint, c real, d double precision, e numeric(20,5), f numeric, g boolean, h date, i timestamp, j timestamptz, k time, l timetz, m interval, n uuid, o json, p jsonb, q int[], r text[], s inet, t cidr, u macaddr, v bit(5), w varbit, x mood, y positive, z pair, aa int4range, ab money, ac char(7), ad "char", af tsvector, ag point, ah oid, ai pg_lsn, aj numeric(5,-2), ak numeric(3,5), al text COLLATE "C", am int4multirange, an name, ao varchar(9))',
        [
            [
                "INSERT INTO types VALUES (1, -32768, 9223372036854775807, 1e-7, 1e15, 123456789012345.12345, 1e60, true, '2024-02-29', '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.7+05', '23:59:59.5', '23:59:59+05:30', '1 year 2 mons -3 days 04:05:06.7', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\" : 1}', '{\"b\":   [1, 2.50]}', '{1,NULL,3}', '{\"a b\",NULL,\"\",\"q\\\"\"}', '10.0.0.1', '10.0.0.0/8', '08:00:2b:01:02:03', '10101', '1', 'happy', 5, '(1,\"a b\")', '[1,5)', '12.34', 'ab', 'q', 'a fat cat', '(1,2)', 4294967295, '16/B374D848', 12345, 0.00123, 'é', '{[1,3),[5,7)}', 'nm', 'vc')",
                "INSERT INTO types (id) VALUES (2)",
                "INSERT INTO types (id, c, d, e, f, h, i, j) VALUES (3, 'NaN', 'NaN', 'NaN', 'NaN', 'infinity', 'infinity', 'infinity'), (4, '-Infinity', 'Infinity', -0.00001, '-Infinity', '-infinity', '-infinity', '-infinity'), (5, -0.0, '-0', 0, 0.000, '0044-03-15 BC', '0044-03-15 12:00 BC', '0044-03-15 12:00 BC'), (6, 3.4028235e38, 1.7976931348623157e308, 1, 1, '5874897-12-31', '294276-12-31 23:59:59.999999', '294276-12-31 23:59:59.999999'), (7, 123456.7, 123456789.123, 2, 2, '0001-01-01', '0001-01-01', '0001-01-01'), (8, 1e6, 1e14, 3, 3, '9999-12-31', '9999-12-31 23:59:59.999999', '9999-12-31 23:59:59.999999'), (9, 1.17549435e-38, 5e-324, 4, 4.0000, '1969-12-31', '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999999')",
            ],
            [
                "UPDATE types SET e = 1, h = '2024-01-01', i = now(), j = now() WHERE id IN (3, 4)",
                "UPDATE types SET e = 'NaN', h = 'infinity' WHERE id = 1",
                "UPDATE types SET id = 20 WHERE id = 5",
                "DELETE FROM types WHERE id = 6",
            ],
        ],
    ),
    "columns that are added": Scenario(
        ["growing"],
        "CREATE TABLE growing (id int PRIMARY KEY, v text); INSERT INTO growing VALUES (1, 'a'), (2, 'b')",
        [
            [
                "INSERT INTO growing VALUES (3, 'c')",
                "ALTER TABLE growing ADD COLUMN w int",
                "UPDATE growing SET w = 5 WHERE id = 1",
                "INSERT INTO growing VALUES (4, 'd', 6)",
            ],
            [
                "UPDATE growing SET v = 'z', w = 9",
                "ALTER TABLE growing ADD COLUMN d text DEFAULT 'old rows too'",
                "INSERT INTO growing VALUES (5, 'e', 1)",
                "UPDATE growing SET d = NULL WHERE id = 1",
            ],
            [
                "ALTER TABLE growing ADD COLUMN r uuid DEFAULT gen_random_uuid()",
                "DELETE FROM growing WHERE id = 2",
            ],
        ],
    ),
    **IDENTITIES,
}
