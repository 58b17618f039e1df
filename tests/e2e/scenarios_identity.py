# ruff: noqa: E501  (a statement is read as a line)
"""What names a row, and how that changes: bags, identities, keys that come and go, keys of every type."""

from __future__ import annotations

from tests.e2e.scenario import Scenario, big

# Each of these is equal, for PostgreSQL, to the value before it; the bytes differ, and so does what is
# printed.
_SAME = {
    "n": ("numeric", "1.0", "1.00"),
    "f": ("float8", "0", "-0"),
    "g": ("float4", "-0", "0"),
    "i": ("interval", "1 day", "24:00:00"),
    "j": ("jsonb", '{"a": 1.0}', '{"a": 1.00}'),
    "c": ("bpchar", "x", "x "),
}
_MORE = {
    "b": ("bytea", r"\x00", r"\x0000"),
    "u": ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12"),
    "ts": ("timestamptz", "infinity", "2024-01-01 00:00:00.000001+00"),
    "a": ("int[]", "{1,NULL}", "{1,0}"),
    "e": ("k_mood", "sad", "happy"),
    "r": ("int4range", "[1,5)", "empty"),
    "p": ("k_couple", '(1,"")', "(1,)"),
    "d": ("k_positive", "1", "2"),
    "m": ("int4multirange", "{}", "{[1,2)}"),
    "ip": ("inet", "10.0.0.1/8", "10.0.0.1"),
    "tm": ("timetz", "10:00:00+00", "12:00:00+02"),
    "bi": ("varbit", "", "0"),
    "o": ("oid", "4294967295", "0"),
    "q": ("name", "é", "e"),
    "s": ("int2", "-32768", "32767"),
    "y": ("bool", "f", "t"),
    "mo": ("money", "0", "-0.01"),
}
_KEYS = {**_SAME, **_MORE}


def _row(number: int) -> str:
    return ", ".join([str(number), *(f"'{first}'" for _, first, _ in _KEYS.values())])


def _moves(row: int, keys: dict[str, tuple[str, str, str]]) -> list[str]:
    return [
        f"UPDATE k_everything SET {name} = '{then}', v = v + 1 WHERE row = {row}"
        for name, (_, _, then) in keys.items()
    ]


IDENTITIES: dict[str, Scenario] = {
    "bags": Scenario(
        ["bag"],
        "CREATE TABLE bag (a int, t text, f float8, n numeric, m numeric(8,2), d timestamptz, x circle, j json, p point, big text); ALTER TABLE bag REPLICA IDENTITY FULL; "
        f"INSERT INTO bag SELECT 1, 'same', '-0', 1.0, 1, 'infinity', '<(1,2),3>', '{{\"a\" : 1}}', '(1,2)', {big(21)} FROM generate_series(1, 3); "
        f"INSERT INTO bag SELECT 1, 'same', '0', 1.00, 'NaN', 'infinity', '<(1,2),3>', '{{\"a\": 1}}', '(1,2)', {big(21)} FROM generate_series(1, 3); "
        "INSERT INTO bag SELECT NULL FROM generate_series(1, 4); INSERT INTO bag (a, f) SELECT 2, 'NaN' FROM generate_series(1, 3)",
        [
            [
                "DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag WHERE n::text = '1.00' LIMIT 1)",
                "DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag WHERE bag IS NULL LIMIT 1)",
                "UPDATE bag SET a = 7 WHERE ctid = (SELECT ctid FROM bag WHERE f::text = '-0' LIMIT 1)",
                "UPDATE bag SET f = 'Infinity' WHERE ctid = (SELECT ctid FROM bag WHERE f = 'NaN' LIMIT 1)",
                "INSERT INTO bag SELECT * FROM bag WHERE a = 2",
            ],
            [
                "UPDATE bag SET t = 'other' WHERE a = 1",
                "UPDATE bag SET t = 'same' WHERE t = 'other' AND f::text = '0'",
                "UPDATE bag SET a = a",
                f"BEGIN; UPDATE bag SET big = {big(22)} WHERE a = 7; UPDATE bag SET d = '-infinity' WHERE a = 7; DELETE FROM bag WHERE a = 2 AND f = 'NaN'; SAVEPOINT s; DELETE FROM bag; ROLLBACK TO s; COMMIT",
            ],
            [
                "BEGIN; INSERT INTO bag (a) VALUES (9), (9); TRUNCATE bag; INSERT INTO bag (a) VALUES (8), (8), (8); DELETE FROM bag WHERE ctid = (SELECT max(ctid) FROM bag); COMMIT"
            ],
        ],
    ),
    # The key's change runs over its neighbour's: for a moment two rows have one key.
    "keys that are deferrable": Scenario(
        ["deferred", "allowed", "later", "sooner", "by_default", "indexed"],
        "".join(
            f"CREATE TABLE {table} (id int PRIMARY KEY{how}, v text); ALTER TABLE {table} REPLICA IDENTITY FULL; INSERT INTO {table} SELECT g, 'v' || g FROM generate_series(1, 5) g; "
            for table, how in (
                ("deferred", " DEFERRABLE INITIALLY DEFERRED"),
                ("allowed", " DEFERRABLE"),
                ("later", ""),
                ("sooner", " DEFERRABLE"),
            )
        )
        + "CREATE TABLE by_default (id int PRIMARY KEY DEFERRABLE, v text); INSERT INTO by_default VALUES (1, 'a'); "
        "CREATE TABLE indexed (id int NOT NULL, v text); CREATE UNIQUE INDEX by_id ON indexed (id); ALTER TABLE indexed REPLICA IDENTITY USING INDEX by_id; "
        "INSERT INTO indexed SELECT g, 'v' || g FROM generate_series(1, 5) g",
        [
            [
                "UPDATE deferred SET id = id + 1",
                "UPDATE allowed SET id = id + 1",
                "BEGIN; INSERT INTO deferred VALUES (3, 'twice'); UPDATE deferred SET id = 30 WHERE v = 'v2'; COMMIT",
                "ALTER TABLE later DROP CONSTRAINT later_pkey, ADD PRIMARY KEY (id) DEFERRABLE; UPDATE later SET id = id + 1",
                "UPDATE sooner SET id = id + 1; ALTER TABLE sooner DROP CONSTRAINT sooner_pkey, ADD PRIMARY KEY (id); UPDATE sooner SET id = -id, v = 'moved' WHERE id < 4",
                "INSERT INTO by_default VALUES (2, 'b')",
                "UPDATE indexed SET id = -id WHERE id < 3; ALTER TABLE indexed ADD CONSTRAINT held UNIQUE USING INDEX by_id DEFERRABLE; INSERT INTO indexed VALUES (50, 'new')",
            ],
            [
                "UPDATE later SET id = id + 1; DELETE FROM later WHERE id = 4",
                "UPDATE sooner SET v = 'again', id = 100 + id; DELETE FROM sooner WHERE id = 104",
                "ALTER TABLE by_default REPLICA IDENTITY FULL; UPDATE by_default SET id = id + 1; DELETE FROM by_default WHERE v = 'b'",
                "ALTER TABLE indexed REPLICA IDENTITY FULL; UPDATE indexed SET id = id + 1",
            ],
        ],
    ),
    "nothing names a row": Scenario(
        ["nameless", "named_nothing"],
        "CREATE TABLE nameless (a int, b text); INSERT INTO nameless VALUES (1, 'x'), (1, 'x'), (NULL, NULL); "
        "CREATE TABLE named_nothing (id int PRIMARY KEY, b text); ALTER TABLE named_nothing REPLICA IDENTITY NOTHING; INSERT INTO named_nothing VALUES (1, 'x')",
        [
            [
                "INSERT INTO nameless VALUES (1, 'x'), (NULL, NULL)",
                "INSERT INTO named_nothing SELECT g, 'y' FROM generate_series(2, 9) g",
            ],
            [
                "INSERT INTO nameless VALUES (5, 'gone')",
                "TRUNCATE nameless, named_nothing",
                "INSERT INTO nameless VALUES (1, 'x'), (1, 'x')",
                "INSERT INTO named_nothing VALUES (1, 'again')",
            ],
        ],
    ),
    "an index beside a primary key": Scenario(
        ["two_keys"],
        f"CREATE TABLE two_keys (id int PRIMARY KEY, code text NOT NULL, part int NOT NULL, big text, UNIQUE (part, code)); ALTER TABLE two_keys REPLICA IDENTITY USING INDEX two_keys_part_code_key; INSERT INTO two_keys SELECT g, 'c' || g, g % 3, {big(23)} FROM generate_series(1, 12) g",
        [
            [
                "UPDATE two_keys SET id = id + 100 WHERE id <= 3",
                "UPDATE two_keys SET code = 'moved' WHERE id = 4",
                "UPDATE two_keys SET part = 9, id = 205 WHERE id = 5",
                "DELETE FROM two_keys WHERE id = 6",
            ],
            [
                "BEGIN; UPDATE two_keys SET code = 'aside' WHERE id = 7; UPDATE two_keys SET code = 'c7', part = 1 WHERE id = 8; UPDATE two_keys SET code = 'c8', part = 2 WHERE id = 7; COMMIT",
                "DELETE FROM two_keys WHERE code = 'moved'; INSERT INTO two_keys VALUES (4, 'moved', 1, NULL)",
            ],
        ],
    ),
    "the identity is switched": Scenario(
        ["switched"],
        f"CREATE TABLE switched (id int PRIMARY KEY, code int NOT NULL UNIQUE, v text, big text); INSERT INTO switched SELECT g, g + 100, 'v', {big(24)} FROM generate_series(1, 12) g",
        [
            [
                "BEGIN; UPDATE switched SET v = 'default' WHERE id <= 2; ALTER TABLE switched REPLICA IDENTITY FULL; UPDATE switched SET v = 'full', id = id + 50 WHERE id <= 3; DELETE FROM switched WHERE id = 53; ALTER TABLE switched REPLICA IDENTITY USING INDEX switched_code_key; UPDATE switched SET code = code + 50 WHERE id > 50; DELETE FROM switched WHERE id = 4; COMMIT",
                "ALTER TABLE switched REPLICA IDENTITY NOTHING",
                "INSERT INTO switched VALUES (20, 20, 'nothing', 'x')",
                "ALTER TABLE switched REPLICA IDENTITY DEFAULT",
                "UPDATE switched SET v = 'default again', id = 21 WHERE id = 20",
            ],
            [
                "BEGIN; ALTER TABLE switched REPLICA IDENTITY FULL; ALTER TABLE switched DROP CONSTRAINT switched_pkey; UPDATE switched SET id = 7 WHERE id IN (8, 9); COMMIT",
                "BEGIN; INSERT INTO switched SELECT 7, code + 1000, v, big FROM switched WHERE id = 7; ALTER TABLE switched DROP COLUMN code; COMMIT",
                "DELETE FROM switched WHERE ctid IN (SELECT ctid FROM switched WHERE id = 7 LIMIT 4)",
                "UPDATE switched SET v = 'as a bag' WHERE id = 7",
            ],
            [
                "DELETE FROM switched WHERE ctid = (SELECT ctid FROM switched WHERE id = 7 LIMIT 1)",
                "ALTER TABLE switched ADD PRIMARY KEY (id)",
                "UPDATE switched SET v = 'whole and keyed', id = 70 WHERE id = 7",
                "ALTER TABLE switched REPLICA IDENTITY DEFAULT",
                "UPDATE switched SET v = 'by key', id = 71 WHERE id = 70",
                "DELETE FROM switched WHERE id = 10",
            ],
        ],
    ),
    "a primary key comes, moves and goes": Scenario(
        ["keyed_later"],
        f"CREATE TABLE keyed_later (a int NOT NULL, b int NOT NULL, big text); INSERT INTO keyed_later SELECT g, g * 10, {big(25)} FROM generate_series(1, 8) g",
        [
            [
                "INSERT INTO keyed_later VALUES (9, 90, 'x')",
                "ALTER TABLE keyed_later ADD PRIMARY KEY (a)",
                "UPDATE keyed_later SET b = b + 1 WHERE a <= 2",
                "UPDATE keyed_later SET a = 30 WHERE a = 3",
                "DELETE FROM keyed_later WHERE a = 9",
            ],
            [
                "BEGIN; UPDATE keyed_later SET a = 40 WHERE a = 4; ALTER TABLE keyed_later DROP CONSTRAINT keyed_later_pkey; INSERT INTO keyed_later VALUES (40, 41, 'twice'); ALTER TABLE keyed_later ADD PRIMARY KEY (b); UPDATE keyed_later SET b = 42 WHERE b = 41; DELETE FROM keyed_later WHERE b = 50; COMMIT"
            ],
            [
                "UPDATE keyed_later SET a = 40, b = b + 1",
                "ALTER TABLE keyed_later DROP CONSTRAINT keyed_later_pkey",
                "INSERT INTO keyed_later VALUES (40, 42, 'three times')",
            ],
        ],
    ),
    "one key, many changes": Scenario(
        ["busy"],
        f"CREATE TABLE busy (id int PRIMARY KEY, n int, big text); INSERT INTO busy SELECT g, 0, {big(26)} FROM generate_series(1, 4) g",
        [
            [
                "DO $$ BEGIN FOR i IN 1..300 LOOP UPDATE busy SET n = i WHERE id = 1; END LOOP; END $$",
                "DO $$ BEGIN FOR i IN 1..60 LOOP DELETE FROM busy WHERE id = 2; INSERT INTO busy VALUES (2, i, CASE WHEN i % 2 = 0 THEN repeat('x', i) END); UPDATE busy SET n = -i WHERE id = 2; END LOOP; END $$",
                "DO $$ BEGIN FOR i IN 1..40 LOOP UPDATE busy SET id = 100 + i WHERE id = CASE i WHEN 1 THEN 3 ELSE 99 + i END; END LOOP; END $$",
                "DO $$ BEGIN FOR i IN 1..21 LOOP UPDATE busy SET id = -id, n = n + 1 WHERE abs(id) = 4; END LOOP; END $$",
            ]
        ],
    ),
    "a key of all types": Scenario(
        ["k_everything"],
        "CREATE TYPE k_mood AS ENUM ('sad', 'happy'); CREATE TYPE k_couple AS (x int, y text); CREATE DOMAIN k_positive AS int CHECK (VALUE > 0); "
        f"CREATE TABLE k_everything (row int, {', '.join(f'{name} {kind}' for name, (kind, _, _) in _KEYS.items())}, v int DEFAULT 0, big text, PRIMARY KEY (row, {', '.join(_KEYS)})); "
        f"INSERT INTO k_everything VALUES {', '.join(f'({_row(number)})' for number in range(5))}; UPDATE k_everything SET big = {big(27)}",
        [
            [
                "UPDATE k_everything SET v = v + 1",
                *_moves(1, _SAME),
                f"DELETE FROM k_everything WHERE row = 2; INSERT INTO k_everything VALUES ({_row(2)}, 5, 'anew')",
            ],
            [
                *_moves(1, _MORE),
                *_moves(3, _KEYS),
                "DELETE FROM k_everything WHERE row = 0",
                *_moves(2, _SAME),
                "DELETE FROM k_everything WHERE row = 2",
            ],
        ],
    ),
    "truncated in streamed and prepared transactions": Scenario(
        ["tr_parent", "tr_child", "tr_other"],
        "CREATE TABLE tr_parent (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text); CREATE TABLE tr_child (id int PRIMARY KEY, p int REFERENCES tr_parent); CREATE TABLE tr_other (v text); ALTER TABLE tr_other REPLICA IDENTITY FULL; "
        "INSERT INTO tr_parent (v) SELECT 'p' FROM generate_series(1, 20) g; INSERT INTO tr_child SELECT g, g FROM generate_series(1, 20) g; INSERT INTO tr_other SELECT 'o' FROM generate_series(1, 20) g",
        [
            [
                "BEGIN; INSERT INTO tr_parent (v) SELECT repeat('x', 100) FROM generate_series(1, 3000); INSERT INTO tr_other SELECT 'gone' FROM generate_series(1, 500); TRUNCATE tr_parent, tr_other RESTART IDENTITY CASCADE; INSERT INTO tr_parent (v) SELECT repeat('y', 100) FROM generate_series(1, 2000); SAVEPOINT s; TRUNCATE tr_parent CASCADE; ROLLBACK TO s; INSERT INTO tr_other VALUES ('after'), ('after'); DELETE FROM tr_other WHERE ctid = '(0,1)'; COMMIT"
            ],
            [
                "BEGIN; INSERT INTO tr_other SELECT 'gone' FROM generate_series(1, 3000); TRUNCATE tr_other, tr_child; INSERT INTO tr_child VALUES (1, 1); INSERT INTO tr_other VALUES ('prepared'); PREPARE TRANSACTION 'truncating'",
                "INSERT INTO tr_parent (v) VALUES ('meanwhile')",
                # Not a step later: until then the tables are locked for readers too.
                "COMMIT PREPARED 'truncating'",
                "UPDATE tr_child SET id = 2",
                "UPDATE tr_other SET v = 'after'",
            ],
        ],
    ),
}
