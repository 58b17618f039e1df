# ruff: noqa: E501 - one case a line
"""Damaged input of every plugin: a ProtocolError that says where, or a reading; never anything else."""

from __future__ import annotations

import copy
import os
import random
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.plugins import encode
from slotlake.decoder.plugins.catalog import RecordedCatalog
from slotlake.decoder.plugins.decoderbufs import ProtobufReader
from slotlake.decoder.plugins.live import read_file
from slotlake.decoder.plugins.model import Change
from slotlake.decoder.plugins.readers import reader_for
from slotlake.decoder.plugins.recording import Recording
from slotlake.decoder.plugins.test_decoding import LinesReader
from slotlake.decoder.plugins.wal2json import JsonReader
from tests.decoder.plugins.collecting import Collecting
from tests.vectors.plugins.capture import WAYS

VECTORS = Path(__file__).parents[2] / "vectors" / "plugins" / "pg15"
MUTATIONS = int(os.environ.get("SLOTLAKE_PLUGIN_MUTATIONS", "500"))


def mutated(payload: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(payload) + 1)
    match chance.randrange(5):
        case 0:
            return payload[:at]
        case 1:
            return payload + bytes(chance.choices(range(256), k=chance.randrange(1, 9)))
        case 2:
            return payload[:at] + bytes([chance.randrange(256)]) + payload[at + 1 :]
        case 3:
            return payload[:at] + payload[at + chance.randrange(1, 9) :]
        case _:
            other = chance.randrange(len(payload) + 1)
            return payload[:at] + payload[min(at, other) : max(at, other)] + payload[at:]


@pytest.mark.seconds
@pytest.mark.parametrize("way", WAYS)
def test_mutated_messages(way: str) -> None:
    chance = random.Random(way)
    recording = Recording(VECTORS / f"{way}.slraw")
    reader = reader_for(recording.startup.plugin, recording.startup.options, recording.catalog)
    messages = list(recording.messages())
    recording.close()
    each = MUTATIONS // len(messages) + 1
    refused = 0
    for lsn, payload in messages:
        for _ in range(each):
            refused += is_refused(copy.deepcopy(reader), mutated(payload, chance), lsn)
        list(reader.read(payload, lsn))
    # Text with another letter in it is as good as before; a structure seldom is.
    assert refused > each * len(messages) // 3


def is_refused(reader: Any, payload: bytes, lsn: int) -> bool:
    try:
        for event in reader.read(payload, lsn):
            if isinstance(event.body, Change):
                widths = {len(each) for each in (event.body.old, event.body.new) if each is not None}
                assert widths <= {len(event.body.relation.columns)}
    except ProtocolError as error:
        assert "0/" in error.where
        return True
    return False


def test_a_recording_cut_or_extended_anywhere(tmp_path: Path) -> None:
    whole = (VECTORS / "decoderbufs.slraw").read_bytes()
    path = tmp_path / "raw"
    for end in [*range(400), *range(400, len(whole), 997), len(whole) - 1]:
        path.write_bytes(whole[:end])
        with pytest.raises(ProtocolError) as raised:
            read_file(path, Collecting())
        assert "byte offset" in raised.value.where
    path.write_bytes(whole + b"e")
    with pytest.raises(ProtocolError, match="left over after the end"):
        read_file(path, Collecting())
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ProtocolError, match="has another number of messages"):
        read_file(path, Collecting())


BEGIN = b"BEGIN 752"
LINES = [
    (b"table public.t: INSERT: id[integer]:1 id[integer]:2", 38, "comes twice"),
    (b"table public.t: INSERT: id[integer]:one", 36, "a number is expected"),
    (b"table public.t: INSERT: id[integer]:1x", 37, "' ' is expected"),
    (b"table public.t: INSERT: a[text]:'it's'", 36, "' ' is expected"),
    (b"table public.t: INSERT: a[text]:'x", 32, "the closing quote is missing"),
    (b"table public.t: INSERT: a[bit]:B'012'", 31, "bits"),
    (b"table public.t: INSERT: a[boolean]:t", 35, "true or false"),
    (b"table public.t: INSERT: a[text", 26, "closing bracket is missing"),
    (b"table public.t: UPSERT: a[text]:'x'", 16, "UPDATE, DELETE or TRUNCATE"),
    (b"table public.t, public.u: INSERT: a[text]:'x'", 26, "more than one table"),
    (b"table public.t: TRUNCATE: ", 25, "flags"),
    (b"table Public.t: INSERT: a[text]:'x'", 6, "a name"),
    (b"table public.t: INSERT: a[text]:'\xff'", 33, "not UTF-8"),
    (b"table public.t: UPDATE: old-key: a[text]:'x' b[text]:'y'", 56, "' new-tuple:' is expected"),
    (b"COMMIT 753", 0, "different transaction ids"),
    (b"COMMIT 752 (at noon)", 15, "a time"),
    (b"COMMIT 9999999999", 7, "too large for a transaction id"),
    (b"BEGIN 753", 0, "begins inside another"),
    (b"message: transactional: 1 prefix: p, sz: 3 content:four", 55, "size"),
    (b"something else", 0, "unknown kind"),
    (b"", 0, "unknown kind"),
    (b"PREPARE TRANSACTION 'x', txid 752", 0, "two_phase"),
]


@pytest.mark.parametrize(("line", "offset", "said"), LINES)
def test_what_test_decoding_would_not_print(line: bytes, offset: int, said: str) -> None:
    reader = LinesReader()
    list(reader.read(BEGIN, 100))
    with pytest.raises(ProtocolError, match=said) as raised:
        list(reader.read(line, 200))
    assert raised.value.offset == offset
    assert "test_decoding message" in raised.value.where
    assert "transaction 752, at 0/C8" in raised.value.where


RECORDS = [
    (b'{"action":"X"}', "unknown action"),
    (b'{"action":"I","schema":"s","table":"t","columns":[],"more":1}', "unknown fields: 'more'"),
    (b'{"action":"I","schema":"s","columns":[]}', "the field 'table' is missing"),
    (b'{"action":"I","schema":"s","table":7,"columns":[]}', "a wrong type"),
    (b'{"action":"I","schema":"s","table":"t","columns":[{"name":"a"}]}', "lacks its value"),
    (b'{"action":"I","schema":"s","table":"t","columns":[{"name":"a","value":[]}]}', "not a text, number"),
    (b'{"action":"I","schema":"s","table":"t","columns":[{"name":"a","value":NaN}]}', "not JSON"),
    (b'{"action":"I","action":"I"}', "a key comes twice"),
    (b'{"action":"I","schema":"s","table":"\xff","columns":[]}', "not UTF-8"),
    (b'{"action":"C","xid":752', "not JSON"),
    (b'{"action":"B"}', "begins inside another"),
    (b'{"action":"I","xid":753,"schema":"s","table":"t","columns":[]}', "another transaction"),
    (b'{"action":"C","timestamp":"noon"}', "not a time"),
    (b'{"action":"C","lsn":"nowhere"}', "not an LSN"),
    (b'{"action":"C","xid":-1}', "not a number in its range"),
    (b'{"nothing":1}', "neither the key 'change'"),
    (b"[]", "not a JSON object"),
    (b"[" * 100_000, "not JSON"),
]


@pytest.mark.parametrize(("record", "said"), RECORDS)
def test_what_wal2json_would_not_print(record: bytes, said: str) -> None:
    reader = JsonReader()
    list(reader.read(b'{"action":"B","xid":752}', 100))
    with pytest.raises(ProtocolError, match=said) as raised:
        list(reader.read(record, 200))
    assert "transaction 752, at 0/C8" in raised.value.where


BYTES = [
    (LinesReader, b"BEGIN 752", b"table public.t: INSERT: a[text]:'x\xff'"),
    (
        JsonReader,
        b'{"action":"B","xid":752}',
        b'{"action":"I","schema":"s","table":"t","columns":[{"name":"a","type":"text","value":"x\xff"}]}',
    ),
]


@pytest.mark.parametrize(("kind", "begin", "line"), BYTES)
def test_bytes_that_are_no_text_reach_who_takes_them(kind: Any, begin: bytes, line: bytes) -> None:
    """The change log takes them, and judges them with all values: it says whose they are."""
    reader = kind()
    list(reader.read(begin, 100))
    with pytest.raises(ProtocolError, match="not UTF-8"):
        list(reader.read(line, 200))
    reader = kind()
    reader.any_bytes = True
    list(reader.read(begin, 100))
    (event,) = list(reader.read(line, 200))
    assert encode.change(event.body).endswith(b"x\xff")


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, wire: int, content: bytes) -> bytes:
    return varint(number << 3 | wire) + content


def row(op: int, *more: bytes, xid: int = 752) -> bytes:
    return field(1, 0, varint(xid)) + field(2, 0, varint(1)) + b"".join(more) + field(4, 0, varint(op))


def text(number: int, content: bytes) -> bytes:
    return field(number, 2, varint(len(content)) + content)


TABLE = text(3, b"public.t")
MESSAGES = [
    (row(9), "unknown operation"),
    (row(0), "lacks its table"),
    (row(0, text(3, b"public")), "'.' is expected"),
    (row(0, TABLE, field(12, 0, b"\1")), "unknown field 12"),
    (row(0, TABLE, field(3, 0, b"\1")), "wire type"),
    (row(0, TABLE, TABLE), "comes twice"),
    (row(0, TABLE, text(5, field(2, 0, b"\x17"))), "lacks the name or the type of its column"),
    (row(0, TABLE, text(5, text(1, b"a") + field(2, 0, b"\x17") + field(3, 0, b"\1") + field(4, 0, b"\1"))), "more than one"),
    (row(0, TABLE, text(5, text(1, b"a") + field(2, 0, b"\x17")), text(5, text(1, b"a") + field(2, 0, b"\x17"))), "twice"),
    (row(0, TABLE, text(7, text(1, b"int4") + field(2, 0, b"\1")), text(5, text(1, b"a") + field(2, 0, b"\x17")), text(5, text(1, b"b") + field(2, 0, b"\x17"))), "different numbers of types and values"),
    (row(0, TABLE, xid=753), "another transaction"),
    (row(3), "begins inside another"),
    (row(4) + b"\xff" * 11, "64 bits"),
    (row(4)[:-1], "ends too early"),
    (field(3, 2, varint(1 << 40)), "ends too early"),
    (b"", "unknown operation"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "said"), MESSAGES)
def test_what_decoderbufs_would_not_send(message: bytes, said: str) -> None:
    reader = ProtobufReader(RecordedCatalog())
    list(reader.read(row(3), 100))
    with pytest.raises(ProtocolError, match=said) as raised:
        list(reader.read(message, 200))
    assert "transaction 752, at 0/C8" in raised.value.where
