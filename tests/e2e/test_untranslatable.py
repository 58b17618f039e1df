"""Bytes that the server cannot translate to UTF-8: their table is set aside, all others are followed."""

# ruff: noqa: E501 - statements of SQL, some to a line
from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.stream import bulk
from tests.conftest import ROOT, Database, Servers
from tests.e2e.aside_causes import encoded_database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(600)
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))

# Encoding → letters that it has, and bytes that have no UTF-8 (81 is nothing in EUC_JP either).  The last
# ones are by chance valid as UTF-8.
LETTERS = {"WIN1252": "é€œ", "EUC_JP": "日本語ｱ"}
BAD = {
    "WIN1252": [b"\x81", b"ok \xe9\x9d", b"\xc3\x81"],
    "EUC_JP": [b"\xa9\xa1", b"\x81", b"\xe3\xa1\xa9\xe3\xa1\xa1"],
}
TABLES = """
CREATE TABLE good (id int PRIMARY KEY, "v {x}" text, a text[], j jsonb, b bytea, c "char");
CREATE TABLE bad (id int PRIMARY KEY, "v {x}" text); ALTER TABLE bad REPLICA IDENTITY FULL;
CREATE TABLE keys (k text PRIMARY KEY, n int);
INSERT INTO good SELECT g, '{x}' || g, ARRAY['{x}', NULL], '{{"{x}": "{x}"}}', '\\x81ff', 'c' FROM generate_series(1, 5) g;
INSERT INTO bad SELECT g, '{x}' FROM generate_series(1, 5) g; INSERT INTO keys SELECT '{x}' || g, g FROM generate_series(1, 5) g
"""
CHANGED = """
UPDATE good SET "v {x}" = "v {x}" || '{x}' WHERE id % 2 = 1; DELETE FROM good WHERE id = 2;
INSERT INTO good SELECT max(id) + 1, '{x}', '{{{x}}}', '["{x}"]', '\\xff' FROM good;
UPDATE good SET id = (SELECT max(id) + 1 FROM good) WHERE id = (SELECT min(id) FROM good)
"""


class _Source:
    """A database of one encoding with a good table, one to be spoiled, and one with a key of text."""

    def __init__(self, database: Database, encoding: str) -> None:
        self.database, self.encoding = database, encoding
        self.letters = LETTERS[encoding]
        self.run(TABLES.format(x=self.letters))

    def run(self, statements: str) -> None:
        with self.database.connect(client_encoding="UTF8") as connection:
            cursor = connection.execute(statements.encode())
            while cursor.nextset():
                pass

    def value(self, raw: bytes) -> str:
        """These bytes as SQL, which a text of that encoding may have."""
        return f"convert_from('\\x{raw.hex()}', '{self.encoding}')"

    def spoil(self, raw: bytes, number: int = 6) -> None:
        """Any bytes, as a function written in C can leave them."""
        self.run("CREATE CAST (bytea AS text) WITHOUT FUNCTION")
        self.run(f"INSERT INTO bad VALUES ({number}, '\\x{raw.hex()}'::bytea::text)")
        self.run("DROP CAST (bytea AS text)")

    def correct(self) -> None:
        self.run(f"UPDATE bad SET \"v {self.letters}\" = '{self.letters}' WHERE id > 5")

    def change(self) -> None:
        self.run(CHANGED.format(x=self.letters))


@pytest.fixture(params=LETTERS if LONG else ["WIN1252"])
def source(servers: Servers, request: pytest.FixtureRequest) -> Iterator[_Source]:
    server = servers(18)
    name = f"untranslated_{os.getpid()}_{request.param.lower()}"
    with encoded_database(server, name, request.param) as database:
        yield _Source(database, request.param)


def _file(source: _Source, folder: Path, more: str = "") -> Path:
    return pipeline_file(folder, source.database, ["good", "bad", "keys"], source=more)


def _only_bad(told: Any) -> None:
    assert list(told) == ["public.bad"], told


def test_changes(source: _Source, session: Any, tmp_path: Path) -> None:
    """Inserts, updates with old rows, keys, bytes that look like UTF-8; then corrected and copied again."""
    with Pipeline.open(_file(source, tmp_path)) as pipeline:
        pipeline.init()
        for raw in BAD[source.encoding]:
            source.change()
            source.spoil(raw)
            source.change()
            told = pipeline.sync().set_aside
            _only_bad(told)
            assert "not UTF-8" in told["public.bad"]
            assert f"column 'v {source.letters}'" in told["public.bad"]
            assert raw.decode("latin-1") not in told["public.bad"]
            assert_equal(source.database, pipeline, ["good", "keys"])

            # Nothing else stops either, while it is there: not a verification, and not its being tried again.
            source.run(f'UPDATE bad SET "v {source.letters}" = "v {source.letters}" || \'{source.letters}\'')
            source.change()
            _only_bad(pipeline.sync().set_aside)
            found = pipeline.verify()
            assert {each.table: each.equal for each in found.tables.values()} == {
                "public.bad": False,
                "public.good": True,
                "public.keys": True,
            }
            with pytest.raises(SlotlakeError, match=r'"public"."bad"'):
                pipeline.resume("bad")
            with pytest.raises(SlotlakeError, match=r'"public"."bad"'):
                pipeline.backfill(["bad"])
            source.correct()
            assert pipeline.resume("bad").rows == 6
            source.run("DELETE FROM bad WHERE id > 5")
            source.change()
            assert pipeline.sync().set_aside == {}
            assert_equal(source.database, pipeline, ["good", "bad", "keys"])
        source.run(f"INSERT INTO keys VALUES ({source.value(raw)}, 9); DELETE FROM keys WHERE n IN (2, 9)")
        source.run("UPDATE bad SET id = id + 10")
        assert list(pipeline.sync().set_aside) == ["public.keys"]
        assert_equal(source.database, pipeline, ["good", "bad"])
        assert pipeline.resume("keys").rows == 4
        assert pipeline.verify().equal


def test_from_the_start(source: _Source, session: Any, tmp_path: Path) -> None:
    """The first copy: the others are followed, and the table comes once it can."""
    source.spoil(BAD[source.encoding][0])
    with Pipeline.open(_file(source, tmp_path)) as pipeline:
        told = pipeline.init().set_aside
        _only_bad(told)
        assert_equal(source.database, pipeline, ["good", "keys"])
        source.change()
        _only_bad(pipeline.sync().set_aside)
        assert_equal(source.database, pipeline, ["good", "keys"])
        source.correct()
        assert pipeline.resume("bad").rows == 6
        assert pipeline.verify().equal


@pytest.mark.parametrize("binary", [False, True])
def test_large_transactions(
    source: _Source, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, binary: bool
) -> None:
    """Sent in progress, open over several syncs, prepared, read through SQL; as text and in binary."""
    more = "binary: true\ntwo_phase: true\n" if binary else ""
    with Pipeline.open(_file(source, tmp_path, more)) as pipeline:
        pipeline.init()
        rows = f"INSERT INTO bad SELECT g, '{source.letters}' FROM generate_series(10, 3000) g;"
        rows += f"INSERT INTO bad VALUES (6, {source.value(BAD[source.encoding][0])});"
        with source.database.connect(client_encoding="UTF8") as writer:
            writer.execute(f"BEGIN; {rows} {CHANGED.format(x=source.letters)}".encode())
            for _ in range(3):
                source.run("UPDATE keys SET n = n + 1")
                assert pipeline.sync().set_aside == {}
                assert_equal(source.database, pipeline, ["good", "bad", "keys"])
            writer.execute("PREPARE TRANSACTION 'open'")
            source.run("UPDATE keys SET n = n + 1")
            assert pipeline.sync().set_aside == {}
            assert_equal(source.database, pipeline, ["good", "bad", "keys"])
            writer.execute("COMMIT PREPARED 'open'")
        _only_bad(pipeline.sync().set_aside)
        assert_equal(source.database, pipeline, ["good", "keys"])
        source.run("DELETE FROM bad WHERE id > 5")
        pipeline.resume("bad")

        if not binary:
            monkeypatch.setattr(bulk, "BULK_MIN_BYTES", 1)
        source.run(rows)
        source.change()
        _only_bad(pipeline.sync().set_aside)
        assert_equal(source.database, pipeline, ["good", "keys"])
        source.correct()
        pipeline.resume("bad")
        source.change()
        assert pipeline.sync().set_aside == {}
        assert_equal(source.database, pipeline, ["good", "bad", "keys"])
        assert pipeline.verify().equal


def test_a_lost_slot(source: _Source, session: Any, tmp_path: Path) -> None:
    """A recovery compares all tables: that one is set aside, the others are recovered."""
    with Pipeline.open(_file(source, tmp_path)) as pipeline:
        pipeline.init()
        source.spoil(BAD[source.encoding][0])
        source.change()
        with source.database.connect() as connection:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.source.slot])
        plan = {each.table: each for each in pipeline.recover().tables}
        assert plan["public.bad"].how == "left"
        assert "set aside" in plan["public.bad"].why
        assert pipeline.status().set_aside == []
        assert "table public.bad is set aside" in pipeline.recover(carry_out=True).diagnosis
        assert_equal(source.database, pipeline, ["good", "keys"])
        source.change()
        _only_bad(pipeline.sync().set_aside)
        assert_equal(source.database, pipeline, ["good", "keys"])
        source.correct()
        pipeline.resume("bad")
        assert pipeline.verify().equal


def test_the_bytes_are_there(source: _Source) -> None:
    """The server refuses each of these; what docs/operations.md says finds their rows."""
    for raw in BAD[source.encoding]:
        with (
            source.database.connect(client_encoding="UTF8") as connection,
            pytest.raises(psycopg.DataError),
        ):
            source.spoil(raw, 6 + raw[0])
            connection.execute("TABLE bad")
    page = (ROOT / "docs" / "operations.md").read_text()
    (statements,) = [block for block in page.split("```sql\n")[1:] if "untranslatable(" in block]
    function, query = statements.split("```")[0].split("$$;\n")
    query = query.replace("orders", "bad").replace("remark", f'"v {source.letters}"')
    with source.database.connect(client_encoding="UTF8") as connection:
        connection.execute(f"{function}$$".encode())
        found = {row[0] for row in connection.execute(query.encode()).fetchall()}
    assert found == {6 + raw[0] for raw in BAD[source.encoding]}
