"""Golden vectors: real servers' bytes through both readers, whole, cut, split and with junk behind."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.columnar.decoder import Decoder
from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.lsn import parse_lsn
from slotlake.decoder.protocol.messages import NoValue
from slotlake.decoder.protocol.reader import StreamReader, read_message
from tests.decoder.agreement import Meaning, Stream, columnar, plain
from tests.vectors.capture import as_json

pytestmark = pytest.mark.fast

FOLDER = Path(__file__).parents[1] / "vectors"
VECTORS = sorted(FOLDER.glob("pg*/*.hex"))
vectors = pytest.mark.parametrize("path", VECTORS, ids=[f"{p.parent.name}-{p.stem}" for p in VECTORS])


@cache
def load(path: Path) -> Stream:
    lines = [line.split(" ") for line in path.read_text().splitlines()]
    return [(parse_lsn(lsn), bytes.fromhex(payload)) for lsn, payload in lines]


@cache
def expected(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    return found


def test_every_case_is_captured_and_every_message_type_occurs() -> None:
    captured = {(p.parent.name, p.stem) for p in VECTORS}
    cases = {p.stem for p in FOLDER.glob("cases/*.sql")}
    assert {("pg18", c) for c in cases} | {("pg16", c) for c in cases if "_pg" not in c} == captured
    for version in ("pg16", "pg18"):
        types = {payload[:1] for p in VECTORS if p.parent.name == version for _, payload in load(p)}
        assert types == {bytes([c]) for c in b"BCORYIUDTM"}


@vectors
def test_plain_reader_reads_what_was_captured(path: Path) -> None:
    reader = StreamReader()
    messages = [as_json(reader.read(payload)) for _, payload in load(path)]
    assert messages == expected(path)["messages"]


@vectors
def test_columnar_reader_agrees_whole_and_split_at_every_message(path: Path) -> None:
    stream = load(path)
    meaning = plain(stream)
    assert columnar(stream, partial=False) == meaning
    everywhere = list(range(len(stream)))
    assert columnar(stream, everywhere, partial=True) == meaning
    assert columnar(stream, everywhere, partial=False) == meaning
    for cut in everywhere:
        assert columnar(stream, [cut], partial=bool(cut % 2)) == meaning


@vectors
def test_stopping_before_a_commit_gives_just_the_earlier_transactions(path: Path) -> None:
    stream = load(path)
    whole = plain(stream)
    for limit in {lsn + d for _, lsn, *_ in whole.transactions for d in (0, 1)}:
        buffer = _buffer(stream)
        decoder = Decoder()
        chunk = decoder.decode(buffer, first_seq=0, first_txn=0, commit_before=limit)
        lsns = chunk.transactions["commit_lsn"].to_pylist()
        assert lsns == [lsn for _, lsn, *_ in whole.transactions if lsn < limit]
        assert chunk.reached == (len(lsns) < len(whole.transactions))
        buffer.drop_first(chunk.consumed)
        rest = decoder.decode(buffer, first_seq=chunk.next_seq, first_txn=chunk.next_txn)
        assert rest.consumed == buffer.count
        assert chunk.counts.changes + rest.counts.changes == len(whole.rows)


@vectors
def test_a_message_cut_anywhere_or_with_junk_behind_is_refused(path: Path) -> None:
    stream = load(path)
    seen = set()
    for i, (lsn, payload) in enumerate(stream):
        tag = payload[:1].decode()
        for length in range(len(payload)):
            with pytest.raises(ProtocolError) as error:
                read_message(payload[:length])
            assert error.value.offset <= length
            assert length == 0 or error.value.message_type == tag
        with pytest.raises(ProtocolError, match="left over"):
            read_message(payload + b"\0")
        with pytest.raises(ProtocolError):
            columnar([*stream[:i], (lsn, payload + b"\0")])
        # One message of a kind is cut for the columnar reader: each cut decodes all before it.
        kind = (tag, len(payload).bit_length())
        for length in range(0 if kind not in seen else len(payload), len(payload)):
            with pytest.raises(ProtocolError):
                columnar([*stream[:i], (lsn, payload[:length])])
        seen.add(kind)


@vectors
def test_replayed_messages_give_the_tables_that_the_server_printed(path: Path) -> None:
    """The stream's meaning checked by something that is not a decoder: the server's own SELECT."""
    if path.stem == "alter":
        pytest.skip("ADD COLUMN with a default and ALTER TYPE change rows without a message")
    tables = replay(columnar(load(path)))
    for name, table in expected(path)["tables"].items():
        columns, rows = tables.get(name, (table["columns"], []))
        order = [columns.index(column) for column in table["columns"]]
        found = sorted(([row[i] for i in order] for row in rows), key=str)
        assert found == table["rows"], name


def replay(meaning: Meaning) -> dict[str, tuple[list[str], list[list[Any]]]]:
    """Apply row changes one by one, as a native subscriber does."""
    tables: dict[str, tuple[list[str], list[list[Any]]]] = {}
    for _, op, relation, _, _, old_kind, new, old in meaning.rows:
        name = f"{relation.schema}.{relation.table}"
        columns, rows = tables.setdefault(name, ([c.name for c in relation.columns], []))
        if op == "T":
            rows.clear()
            continue
        keys = [i for i, c in enumerate(relation.columns) if c.in_key or old_kind == "O"]
        before: list[Any] | None = None
        if op in "UD":
            image = old if old is not None else new
            before = next(row for row in rows if all(row[i] == image[i] for i in keys))
            rows.remove(before)
        if op in "IU":
            known = before or [None] * len(columns)
            rows.append([known[i] if v is NoValue.UNCHANGED else v for i, v in enumerate(new)])
    return tables


def _buffer(stream: Stream) -> Any:
    from slotlake.decoder.columnar.buffer import MessageBuffer

    buffer = MessageBuffer()
    for lsn, payload in stream:
        buffer.append(payload, lsn)
    return buffer
