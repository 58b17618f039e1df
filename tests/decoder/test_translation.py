"""Texts that come as they are stored: translated here they are what the server would have sent."""

# ruff: noqa: E501 - statements of SQL, some to a line
from __future__ import annotations

import random
import shutil
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.errors import UntranslatableError
from slotlake.decoder.server.source import connect
from slotlake.decoder.slots.position import require_server_of
from slotlake.decoder.slots.slot import inspect_slot
from slotlake.decoder.stream import bulk
from slotlake.decoder.stream import pull as pull_module
from slotlake.decoder.stream.overlap import contradiction
from slotlake.decoder.translation.messages import Characters, Translation
from slotlake.infra.opened.standing import PullSettings, StandingStream
from tests.conftest import Database, seed_of_the_run
from tests.decoder.sources import pulled, slotted
from tests.decoder.test_streaming import contents
from tests.e2e.aside_causes import encoded_database

SINGLE = [
    *(f"LATIN{number}" for number in range(1, 11)),
    *(f"WIN{number}" for number in (866, 874, *range(1250, 1259))),
    *("KOI8R", "KOI8U", "ISO_8859_5", "ISO_8859_6", "ISO_8859_7", "ISO_8859_8"),
]
MANY = ["EUC_JP", "EUC_CN", "EUC_KR", "EUC_TW", "EUC_JIS_2004"]
REFUSED = (psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire)


def _by_the_server(connection: psycopg.Connection[Any], encoding: str, text: bytes) -> bytes | None:
    try:
        row = connection.execute("SELECT convert(%b, %s, 'UTF8')", (text, encoding), binary=True).fetchone()
    except REFUSED:
        return None
    assert row is not None
    return bytes(row[0])


@pytest.mark.parametrize("encoding", SINGLE)
def test_every_byte_of_an_encoding(database: Database, encoding: str) -> None:
    """Each byte but zero, alone and between others, is what the server says, if it says anything."""
    texts = [bytes([byte]) for byte in range(1, 256)] + [
        b"a" + bytes([byte]) + b"\xe1z" for byte in range(1, 256)
    ]
    with connect(database.dsn) as server, Characters(database.dsn, encoding) as characters:
        characters.learn(texts)
        assert [characters.utf8(text) for text in texts] == [
            _by_the_server(server, encoding, t) for t in texts
        ]


@pytest.mark.parametrize("encoding", MANY)
def test_characters_of_several_bytes(database: Database, encoding: str) -> None:
    """Texts of whole, halved and impossible characters: all or nothing, as the server says."""
    drawn = random.Random(seed_of_the_run())
    firsts = [0x41, 0x5C, 0x7E, 0x80, 0x81, 0x8E, 0x8F, 0xA0, 0xA1, 0xA4, 0xA9, 0xB0, 0xC4, 0xF4, 0xFE, 0xFF]
    texts = [bytes(pair) for pair in product(firsts, repeat=2)] + [
        bytes(each) for each in product(firsts[4:], repeat=3)
    ]
    valid = [bytes([first, second]) for first in range(0xB0, 0xC8) for second in range(0xA1, 0xFF)]
    parts = [*valid, b"a", b"\\", b"\x8e\xb1", b"\x8e\xa1\xb0\xa1", b"\x8f\xb0\xa1"]
    texts += [b"".join(drawn.choices(parts, k=drawn.randrange(1, 9))) for _ in range(1500)]
    texts += [text[: drawn.randrange(len(text) + 1)] for text in texts[-500:]]
    with connect(database.dsn) as server, Characters(database.dsn, encoding) as characters:
        characters.learn(texts)
        found = [characters.utf8(text) for text in texts]
        assert found == [_by_the_server(server, encoding, text) for text in texts]
        assert None in found
        assert sum(text is not None for text in found) > 100


def test_an_encoding_that_is_not_known(database: Database) -> None:
    with pytest.raises(UntranslatableError, match="UTF8"):
        Characters(database.dsn)


@pytest.fixture(params=["EUC_JP", "WIN1252"])
def encoded(database: Database, request: pytest.FixtureRequest) -> Iterator[Database]:
    with encoded_database(database.server, f"{database.name}_{request.param.lower()}", request.param) as made:
        yield made


LETTERS = {"euc_jp": "日本語ｱ", "win1252": "é€œ"}
SETUP = r"""
CREATE TYPE "mood_{x}" AS ENUM ('{x}', 'fine');
CREATE TABLE "t_{x}" ("id_{x}" text PRIMARY KEY, "v_{x}" text, m "mood_{x}", a text[], j jsonb, b bytea, c "char", n numeric);
CREATE TABLE plain (id int, v text); ALTER TABLE plain REPLICA IDENTITY FULL; CREATE PUBLICATION "p_{x}" FOR ALL TABLES
"""
CHANGED = r"""
INSERT INTO "t_{x}" SELECT '{x}' || g, repeat('{x}', 900 * (g % 2)), '{x}', '{{"{x}",NULL}}', '["{x}"]', '\xff00', '\', g FROM generate_series(1, 200) g;
UPDATE "t_{x}" SET n = 1 WHERE n < 20; UPDATE "t_{x}" SET "id_{x}" = 'new' WHERE n = 77; DELETE FROM "t_{x}" WHERE n = 78;
INSERT INTO plain VALUES (1, '{x}\'), (2, NULL); UPDATE plain SET v = v || 'x'; DELETE FROM plain; TRUNCATE plain;
SELECT pg_logical_emit_message(true, 'in {x}', '\xff81'::bytea); SELECT pg_logical_emit_message(false, 'out {x}', '{x}');
ALTER TABLE "t_{x}" ADD COLUMN "{x}" "mood_{x}" DEFAULT 'fine'; INSERT INTO "t_{x}" VALUES ('last');
SELECT pg_replication_origin_session_setup('from_{x}'); INSERT INTO plain VALUES (7, 'ascii');
BEGIN; INSERT INTO plain VALUES (8, '{x}'); PREPARE TRANSACTION 'one {x}';
BEGIN; INSERT INTO plain VALUES (9, '{x}'); PREPARE TRANSACTION 'two {x}';
INSERT INTO plain VALUES (10, '{x}'); COMMIT PREPARED 'one {x}'; ROLLBACK PREPARED 'two {x}'
"""


def _run(database: Database, statements: str) -> None:
    with database.connect(client_encoding="UTF8") as connection:
        for each in statements.split(";"):
            connection.execute(each.encode())


@pytest.mark.parametrize("two_phase", [False, True])
def test_a_batch_is_the_same(
    encoded: Database,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    *,
    two_phase: bool,
) -> None:
    """Names, types, keys, old rows, arrays, messages, origins, prepared transactions, large values, ASCII."""
    letters = LETTERS[encoded.name.split("_", 3)[-1]]
    _run(encoded, SETUP.format(x=letters))
    _run(encoded, f"SELECT pg_replication_origin_create('from_{letters}')")
    request.addfinalizer(lambda: _run(encoded, f"SELECT pg_replication_origin_drop('from_{letters}')"))
    slot, start = slotted(encoded, messages=True, two_phase=two_phase)
    source = replace(slot, publications=(f"p_{letters}",))
    _run(encoded, CHANGED.format(x=letters))
    usual = pulled(source, tmp_path / "usual", start)

    def refused(*given: Any) -> Any:
        raise UntranslatableError("asked for by the test", where="here", way_out="none is needed here at all")

    monkeypatch.setattr(pull_module, "_first_that_works", refused)
    stored = pulled(source, tmp_path / "stored", start, until=usual.end_lsn)
    assert contents(stored) == contents(usual)
    assert len(contents(usual)) > 230
    assert [each.columns for each in stored.relations] == [each.columns for each in usual.relations]


def test_the_look_into_the_slot(encoded: Database, tmp_path: Path) -> None:
    """What was confirmed less far than the lake stands is compared, whatever bytes it has."""
    letters = LETTERS[encoded.name.split("_", 3)[-1]]
    _run(encoded, f'CREATE TABLE t (v text); CREATE PUBLICATION "p_{letters}" FOR TABLE t')
    _run(encoded, "CREATE CAST (bytea AS text) WITHOUT FUNCTION")
    slot, start = slotted(encoded)
    source = replace(slot, publications=(f"p_{letters}",))
    _run(encoded, rf"INSERT INTO t VALUES ('{letters}'); INSERT INTO t VALUES ('\x81'::bytea::text)")
    batch = pulled(source, tmp_path, start, pass_over=True)
    assert list(batch.unreadable) == [("public", "t")]
    with connect(source.dsn) as connection:
        state = inspect_slot(connection, source.slot)
        assert state is not None
        assert contradiction(connection, source, state, tmp_path, batch.end_lsn) is None
        _run(encoded, "INSERT INTO t VALUES ('later')")
        later = pulled(source, tmp_path, batch.end_lsn)
        shutil.rmtree(batch.path)
        assert contradiction(connection, source, state, tmp_path, later.end_lsn) is None
        connection.execute("SELECT 1")


def _spoiled(database: Database, **more: Any) -> tuple[Any, int]:
    """A slot, behind which a table gets a value of bytes that are no text."""
    setup = "CREATE TABLE t (v text); CREATE TABLE good (v text); CREATE PUBLICATION p FOR ALL TABLES"
    _run(database, f"{setup}; CREATE CAST (bytea AS text) WITHOUT FUNCTION")
    source, start = slotted(database, **more)
    _run(database, r"INSERT INTO good VALUES ('x'); INSERT INTO t VALUES ('\x81'::bytea::text)")
    return source, start


def test_a_backlog_that_fails_at_once(
    encoded: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server drops the copied slot with the failed query: that is no other server."""
    source, start = _spoiled(encoded)
    asked: list[Any] = []

    def late(reader: Any, *given: Any) -> None:
        time.sleep(3)
        asked.append(reader)
        require_server_of(reader, *given)

    monkeypatch.setattr(bulk, "BULK_MIN_BYTES", 0)
    monkeypatch.setattr(bulk, "require_server_of", late)
    batch = pulled(source, tmp_path, start, pass_over=True)
    assert len(asked) == 1
    assert list(batch.unreadable) == [("public", "t")]
    assert batch.changes == 1


def test_a_standing_stream(encoded: Database, tmp_path: Path) -> None:
    """It reads that batch in another way, and goes on behind it."""
    source, start = _spoiled(encoded)
    _run(encoded, "SELECT pg_logical_emit_message(true, 'p', 'x')")
    standing = StandingStream(PullSettings(source, "test", tmp_path, None, 1 << 20))
    try:
        batch = standing.batch(start, None)
        assert list(batch.unreadable) == [("public", "t")]
        assert batch.changes == 1
        for position in (1, 2):
            _run(encoded, f"INSERT INTO good VALUES ('{position}')")
            batch = standing.batch(batch.end_lsn, None)
            assert (batch.changes, batch.unreadable) == (1, {})
        assert standing.connected
        _run(encoded, r"INSERT INTO t VALUES ('\x81'::bytea::text); INSERT INTO good VALUES ('3')")
        batch = standing.batch(batch.end_lsn, None)
        assert (batch.changes, list(batch.unreadable)) == (1, [("public", "t")])
    finally:
        standing.end()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "WIN1252"])
def test_transactions_in_progress_and_prepared(database: Database, tmp_path: Path, encoding: str) -> None:
    """They are checked as they arrive; whose bytes are no text is found when they come out."""
    with encoded_database(database.server, f"{database.name}_parts", encoding) as parts:
        source, start = _spoiled(parts, two_phase=True)
        batch = pulled(source, tmp_path, start, pass_over=True)
        assert list(batch.unreadable) == [("public", "t")]
        large = r"INSERT INTO t SELECT '\x81'::bytea::text FROM generate_series(1, 3000)"
        rows = f"{large}; INSERT INTO good VALUES ('y')"
        with parts.connect() as connection:
            for number, end in enumerate(("COMMIT", "PREPARE TRANSACTION 'parts'", "ROLLBACK")):
                for each in ("BEGIN", *rows.split("; "), end):
                    connection.execute(each.encode())
                batch = pulled(source, tmp_path, batch.end_lsn, pass_over=True)
                assert list(batch.unreadable) == ([] if number else [("public", "t")])
                assert batch.changes == (0 if number else 1)
            connection.execute("COMMIT PREPARED 'parts'")
        batch = pulled(source, tmp_path, batch.end_lsn, pass_over=True)
        assert (batch.changes, list(batch.unreadable)) == (1, [("public", "t")])


def _buffer(*messages: bytes) -> MessageBuffer:
    made = MessageBuffer()
    for number, message in enumerate(messages):
        made.append(message, number)
    return made


def _messages(buffer: MessageBuffer) -> list[bytes]:
    return [buffer.data[buffer.ends[i] : buffer.ends[i + 1]].tobytes() for i in range(buffer.count)]


def _row(*values: bytes) -> bytes:
    told = b"".join(b"t" + struct.pack(">I", len(value)) + value for value in values)
    return b"I" + struct.pack(">I", 7) + b"N" + struct.pack(">H", len(values)) + told


def test_what_cannot_be_translated_is_never_utf8(encoded: Database) -> None:
    """Bytes that are UTF-8 by chance are marked; what breaks the grammar is left to the decoder."""
    bad = b"\xc3\x81" if "win1252" in encoded.name else b"\xe3\xa1\xa9\xe3\xa1\xa1"
    assert bad.decode()
    cut = _row(b"\xb0\xa1")[:-1]
    given = [_row(b"a"), _row(b"a", bad, b"b"), b"", b"?\xff", cut, _row(b"c"), b"I\0\0\0\7Nx\xff\xff\xff"]
    with Translation(encoded.dsn) as translation:
        taken = translation.take(_buffer(*given))
        expected = [given[0], _row(b"a", b"\xff" + bad, b"b"), *given[2:]]
        assert _messages(taken) == expected
        assert np.array_equal(taken.lsns, np.arange(len(given), dtype=np.uint64))
        for unchanged in (_buffer(), _buffer(b""), _buffer(given[0], b"", given[5])):
            assert translation.take(unchanged) is unchanged
