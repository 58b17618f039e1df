"""The columnar reader held equal to the plain one: on good streams, on damaged ones, however cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.columnar.decoder import Decoder
from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.protocol import relation_reading
from slotlake.decoder.protocol.messages import (
    Begin,
    BinaryValue,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    NoValue,
    Origin,
    RelationMessage,
    Truncate,
    Update,
)
from slotlake.decoder.protocol.relation_reading import read_relation
from slotlake.decoder.protocol.relations import Column, Relation
from slotlake.decoder.protocol.wire import read_message
from tests.decoder.agreement import Meaning, Stream, columnar, plain
from tests.decoder.streams import TIME, relations, streams
from tests.decoder.test_reader import REFUSED
from tests.decoder.wire import encode

pytestmark = pytest.mark.fast

agreement = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
ITEM = Relation(
    7, "public", "item", "d", (Column("id", 23, -1, True, "int4"), Column("note", 25, -1, False, "text"))
)


def buffer_of(*messages: Message | bytes) -> MessageBuffer:
    buffer = MessageBuffer()
    for i, message in enumerate(messages):
        buffer.append(message if isinstance(message, bytes) else encode(message), 100 + i)
    return buffer


def decode(*messages: Message | bytes, **options: Any) -> Any:
    return Decoder().decode(buffer_of(*messages), first_seq=0, first_txn=0, **options)


def transaction(position: int, *inside: Message) -> list[Message]:
    return [Begin(position, TIME, 1), *inside, Commit(position, position + 48, TIME)]


@pytest.mark.seconds
@agreement
@given(stream=streams(), cuts=st.lists(st.integers(0, 40), max_size=5), partial=st.booleans())
def test_both_readers_say_the_same_however_the_stream_is_cut(
    stream: Stream, cuts: list[int], partial: bool
) -> None:
    assert columnar(stream, [min(c, len(stream)) for c in cuts], partial=partial) == plain(stream)


def outcome(read: Any, stream: Stream) -> Meaning | None:
    try:
        found: Meaning = read(stream)
    except ProtocolError:
        return None
    return found


@pytest.mark.seconds
@settings(agreement, max_examples=200)
@given(stream=streams(), data=st.data())
def test_both_readers_take_or_refuse_a_damaged_stream_alike(stream: Stream, data: Any) -> None:
    damaged = list(stream)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        lsn, payload = damaged[at]
        match data.draw(st.sampled_from(["byte", "byte", "byte", "cut", "junk", "drop", "twice", "swap"])):
            case "byte" if payload:
                place = data.draw(st.integers(0, len(payload) - 1))
                byte = data.draw(st.sampled_from([0, 1, 255, *b"BCIUDTKONntu", payload[place] ^ 1]))
                damaged[at] = (lsn, payload[:place] + bytes([byte]) + payload[place + 1 :])
            case "cut":
                damaged[at] = (lsn, payload[: data.draw(st.integers(0, len(payload)))])
            case "junk":
                damaged[at] = (lsn, payload + data.draw(st.binary(min_size=1, max_size=9)))
            case "drop" if len(damaged) > 1:
                del damaged[at]
            case "twice":
                damaged.insert(at, damaged[at])
            case "swap":
                other = data.draw(st.integers(0, len(damaged) - 1))
                damaged[at], damaged[other] = damaged[other], damaged[at]
    assert outcome(columnar, damaged) == outcome(plain, damaged)


@settings(agreement, max_examples=100)
@given(payloads=st.lists(st.binary(max_size=30), max_size=5), start=st.booleans())
def test_noise_never_crashes(payloads: list[bytes], start: bool) -> None:
    head = [encode(Begin(1000, TIME, 1)), encode(RelationMessage(ITEM))] if start else []
    stream = list(enumerate([*head, *payloads]))
    assert outcome(columnar, stream) == outcome(plain, stream)


def test_an_error_names_message_offset_and_position_and_changes_nothing() -> None:
    decoder = Decoder()
    good = transaction(1000, RelationMessage(ITEM), Insert(7, ("1", "a")))
    bad = buffer_of(*good, Begin(2000, TIME, 2), encode(Insert(7, ("2", "b")))[:-3])
    with pytest.raises(ProtocolError, match="WAL 0/69") as error:
        decoder.decode(bad, first_seq=0, first_txn=0)
    assert (error.value.message_type, error.value.offset) == ("I", 15)
    # The relation of the refused buffer is not known afterwards.
    with pytest.raises(ProtocolError, match="not described"):
        decoder.decode(buffer_of(*transaction(1000, Insert(7, ("1", "a")))), first_seq=0, first_txn=0)
    chunk = decoder.decode(buffer_of(*good), first_seq=0, first_txn=0)
    assert chunk.consumed == 4


@pytest.mark.parametrize(("payload", "tag", "offset", "reason"), REFUSED)
def test_a_wrong_message_is_refused_as_the_plain_reader_refuses_it(
    payload: bytes, tag: str, offset: int, reason: str
) -> None:
    opening: list[Message] = [] if tag == "B" else [Begin(1000, TIME, 1), RelationMessage(ITEM)]
    with pytest.raises(ProtocolError) as error:
        decode(*opening, payload, partial=True)
    if reason != "UTF-8":  # found when the column is read, not when the message is walked
        assert reason in error.value.what
        assert (error.value.message_type, error.value.offset) == (tag, offset)


def test_a_value_that_does_not_parse_names_column_and_table_not_the_value() -> None:
    with pytest.raises(ProtocolError, match=r"column 'id' of public\.item") as error:
        decode(*transaction(1000, RelationMessage(ITEM), Insert(7, ("1", "a")), Insert(7, ("secret", "b"))))
    assert "secret" not in str(error.value)
    assert "WAL 0/67" in str(error.value)


def test_the_relation_cache_lasts_from_call_to_call() -> None:
    decoder = Decoder()
    decoder.decode(buffer_of(*transaction(1000, RelationMessage(ITEM))), first_seq=0, first_txn=0)
    chunk = decoder.decode(buffer_of(*transaction(2000, Insert(7, ("1", "a")))), first_seq=9, first_txn=4)
    (table,) = chunk.rows.values()
    assert table.schema.names == ["seq", "op", "txn", "lsn", "old", "n0", "n1"]
    assert table.to_pylist() == [
        {"seq": 9, "op": 73, "txn": 4, "lsn": 101, "old": 0, "n0": 1, "n1": "a"},
    ]
    assert (chunk.next_seq, chunk.next_txn) == (10, 5)


def test_empty_transactions_leave_no_trace_but_their_position() -> None:
    chunk = decode(
        Begin(500, TIME, 1),
        Origin(1, "not the next one's"),
        Commit(500, 548, TIME),
        *transaction(1000, RelationMessage(ITEM), Insert(7, ("1", "a"))),
        *transaction(2000),
    )
    assert chunk.transactions.to_pydict()["commit_lsn"] == [1000]
    assert chunk.transactions.to_pydict()["origin"] == [None]
    assert (chunk.last_commit_lsn, chunk.last_end_lsn) == (2000, 2048)
    assert chunk.consumed == 9


def test_an_origin_reaches_a_transaction_that_is_handed_over_in_parts() -> None:
    decoder, buffer = Decoder(), MessageBuffer()
    messages = transaction(1000, Origin(1, "upstream"), RelationMessage(ITEM), Insert(7, ("1", "a")))
    origins, opens = [], []
    for message in messages:
        buffer.append(encode(message), 1)
        chunk = decoder.decode(buffer, first_seq=0, first_txn=3, partial=True)
        buffer.drop_first(chunk.consumed)
        origins += chunk.transactions["origin"].to_pylist()
        opens.append(chunk.open)
        for table in chunk.rows.values():
            assert table["txn"].to_pylist() == [3]
    assert origins == ["upstream"]
    assert opens == [True] * 4 + [False]


def test_nothing_of_an_unfinished_transaction_is_handed_over_unless_asked() -> None:
    messages = [*transaction(1000, RelationMessage(ITEM)), Begin(2000, TIME, 2), Insert(7, ("1", "a"))]
    chunk = decode(*messages)
    assert (chunk.consumed, chunk.rows, chunk.open, chunk.next_seq) == (3, {}, False, 0)
    chunk = decode(*messages, partial=True)
    assert (chunk.consumed, chunk.counts.changes, chunk.open) == (5, 1, True)


def test_a_loose_message_is_stopped_by_its_own_end() -> None:
    loose = LogicalMessage(False, 1500, "p", b"")
    assert decode(loose, commit_before=1500).counts.messages == 1
    stopped = decode(loose, commit_before=1499)
    assert (stopped.counts.messages, stopped.reached, stopped.consumed) == (0, True, 0)
    inside = transaction(1000, LogicalMessage(True, 1500, "p", b""))
    assert decode(*inside, commit_before=1001).counts.messages == 1


def test_optional_columns_are_there_only_when_a_row_needs_them() -> None:
    dated = Relation(8, "public", "d", "f", (Column("d", 1082, -1, True), Column("t", 25, -1, True)))
    rows = [Insert(8, ("2026-01-01", "x")), Insert(8, ("infinity", NoValue.UNCHANGED))]
    chunk = decode(*transaction(1000, RelationMessage(dated), *rows))
    (table,) = chunk.rows.values()
    assert table.schema.names == ["seq", "op", "txn", "lsn", "old", "n0", "n1", "u1", "xn0"]
    assert table["xn0"].to_pylist() == [None, "infinity"]
    assert table["u1"].to_pylist() == [False, True]
    assert table["n0"].type == pa.date32()


def test_many_tables_in_turn_are_told_apart() -> None:
    count = 300
    tables = [RelationMessage(Relation(i, "s", f"t{i}", "d", ITEM.columns)) for i in range(1, count)]
    rows = [Insert(i, (str(n), f"{i}")) for n in range(5) for i in range(1, count)]
    chunk = decode(*transaction(1000, *tables, *rows))
    assert [r.relation_id for r in chunk.rows] == list(range(1, count))
    for relation, table in chunk.rows.items():
        assert table["n0"].to_pylist() == [0, 1, 2, 3, 4]
        assert set(table["n1"].to_pylist()) == {str(relation.relation_id)}


def test_a_table_wider_than_one_group_of_columns_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotlake.decoder.columnar.rows._VALUES_MAX", 12)
    monkeypatch.setattr("slotlake.decoder.columnar.rows._COLUMNS_MIN", 1)
    wide = Relation(9, "s", "wide", "d", tuple(Column(f"c{i}", 23, -1, False) for i in range(100)))
    rows = [Insert(9, tuple(str(1000 * n + i) for i in range(100))) for n in range(5)]
    (table,) = decode(*transaction(1000, RelationMessage(wide), *rows)).rows.values()
    assert [table[f"n{i}"][3].as_py() for i in range(100)] == [3000 + i for i in range(100)]


@pytest.mark.parametrize("located_max", [5, 1 << 21])
def test_tables_of_different_types_share_their_parsing(
    monkeypatch: pytest.MonkeyPatch, located_max: int
) -> None:
    monkeypatch.setattr("slotlake.decoder.columnar.rows._VALUES_MAX", located_max)
    monkeypatch.setattr("slotlake.decoder.columnar.rows._COLUMNS_MIN", 1)
    dated = Relation(8, "s", "dated", "f", (Column("d", 1082, -1, True), Column("id", 23, -1, True)))
    rows: list[Message] = []
    for n in range(4):
        rows.append(Insert(7, (str(n), NoValue.NULL if n == 2 else f"item {n}")))
        rows.append(Insert(8, ("infinity" if n == 3 else f"2026-01-0{n + 1}", str(-n))))
    chunk = decode(*transaction(1000, RelationMessage(ITEM), RelationMessage(dated), *rows))
    items, days = chunk.rows.values()
    assert items["seq"].to_pylist() == [0, 2, 4, 6]
    assert days["seq"].to_pylist() == [1, 3, 5, 7]
    assert items["n0"].to_pylist() == [0, 1, 2, 3]
    assert items["n1"].to_pylist() == ["item 0", "item 1", None, "item 3"]
    assert days["n1"].to_pylist() == [0, -1, -2, -3]
    assert days["xn0"].to_pylist() == [None, None, None, "infinity"]
    assert "xn0" not in items.schema.names


def test_tables_alike_are_read_together_and_have_only_what_each_needs() -> None:
    columns = (Column("id", 23, -1, True, "int4"), Column("day", 1082, -1, False, "date"))
    tables = [RelationMessage(Relation(i, "s", f"t{i}", "f", columns)) for i in range(1, 6)]
    rows: list[Message] = []
    for n in range(3):
        rows += [Insert(i, (str(10 * i + n), "2026-01-01")) for i in (1, 5)]
        rows += [Update(2, "O", (str(n), "infinity"), (str(n), "2026-01-02"))]
        rows += [Update(3, "K", (str(n), NoValue.NULL), (str(n), NoValue.UNCHANGED))]
        rows += [
            Insert(4, (str(n), "infinity" if n == 1 else NoValue.NULL)),
            Delete(4, "K", ("7", "infinity")),
        ]
    chunk = decode(*transaction(1000, *tables, *rows, Truncate(False, False, (5, 1))))
    assert [version.table for version in chunk.rows] == ["t1", "t5", "t2", "t3", "t4"]
    by_name = {version.table: table for version, table in chunk.rows.items()}
    fixed = ["seq", "op", "txn", "lsn", "old", "n0", "n1"]
    assert by_name["t1"].schema.names == fixed == by_name["t5"].schema.names
    assert by_name["t2"].schema.names == [*fixed, "o0", "o1", "xo1"]
    assert by_name["t3"].schema.names == [*fixed, "o0", "u1"]
    assert by_name["t4"].schema.names == [*fixed, "o0", "o1", "xn1", "xo1"]
    assert by_name["t1"]["n0"].to_pylist() == [10, 11, 12, None]
    assert by_name["t5"]["op"].to_pylist() == [ord(letter) for letter in "IIIT"]
    assert by_name["t2"]["xo1"].to_pylist() == ["infinity"] * 3
    assert by_name["t3"]["o0"].to_pylist() == [
        0,
        1,
        2,
    ]
    assert by_name["t3"]["u1"].to_pylist() == [True] * 3
    assert by_name["t4"]["xn1"].to_pylist() == [None, None, "infinity", None, None, None]
    for table in by_name.values():
        table.validate(full=True)


@settings(agreement, max_examples=300)
@given(relation=relations(5), data=st.data())
def test_a_description_is_read_as_the_plain_reader_reads_it(relation: Relation, data: Any) -> None:
    payload = bytearray(encode(RelationMessage(relation)))
    for _ in range(data.draw(st.integers(0, 2))):
        payload[data.draw(st.integers(1, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = (
        bytes(payload[: data.draw(st.integers(1, len(payload)))])
        if data.draw(st.booleans())
        else bytes(payload)
    )
    found = []
    for read in (read_relation, lambda raw: read_message(raw).relation):  # type: ignore[union-attr]
        try:
            found.append(read(cut))
        except ProtocolError as error:
            found.append((error.what, error.offset))
    assert found[0] == found[1]


def test_what_is_kept_of_descriptions_is_bounded() -> None:
    wide = Relation(9, "s", "wide", "d", tuple(Column(f"c{i}", 23, -1, False, "int4") for i in range(1000)))
    before = relation_reading._read_again.cache_info().currsize
    assert read_relation(encode(RelationMessage(wide))) == wide
    assert relation_reading._read_again.cache_info().currsize == before
    for i in range(1, 3000):
        read_relation(encode(RelationMessage(Relation(i, "s", "t", "d", ITEM.columns))))
    assert relation_reading._read_again.cache_info().currsize <= 2048


def test_a_bad_value_is_named_among_many_tables() -> None:
    tables = [RelationMessage(Relation(i, "s", f"t{i}", "d", ITEM.columns)) for i in range(1, 20)]
    rows = [Insert(i, ("12" if i != 13 else "x", "note")) for i in range(1, 20)]
    with pytest.raises(ProtocolError, match=r"column 'id' of s\.t13"):
        decode(*transaction(1000, *tables, *rows))
    rows = [Insert(i, (str(i), "note")) for i in range(1, 20)]
    broken = encode(rows[6]).replace(b"note", b"n\xfft\xfe")
    with pytest.raises(ProtocolError, match=r"UTF-8, in column 'note' of s\.t7"):
        decode(*transaction(1000, *tables), Begin(2000, TIME, 2), *rows[:6], broken, partial=True)


def test_binary_values_beside_text_when_asked_for() -> None:
    rows = [
        Insert(7, (BinaryValue((41).to_bytes(4, "big")), BinaryValue("ü".encode()))),
        Insert(7, ("42", BinaryValue(b"b"))),
        Insert(7, (BinaryValue((-1).to_bytes(4, "big", signed=True)), NoValue.NULL)),
    ]
    messages = buffer_of(*transaction(1000, RelationMessage(ITEM), *rows))
    (table,) = Decoder(binary=True).decode(messages, first_seq=0, first_txn=0).rows.values()
    assert table["n0"].to_pylist() == [41, 42, -1]
    assert table["n1"].to_pylist() == ["ü", "b", None]
    with pytest.raises(ProtocolError, match="the option binary is off"):
        Decoder().decode(messages, first_seq=0, first_txn=0)


def test_each_transaction_has_its_own_origin() -> None:
    messages: list[Message] = [RelationMessage(ITEM)]
    stream: list[Message] = [Begin(500, TIME, 1), *messages, Commit(500, 548, TIME)]
    for i in range(300):
        inside: list[Message] = [] if i % 3 == 2 else [Origin(5, f"node {i % 3}")]
        stream += transaction(1000 + 100 * i, *inside, Insert(7, (str(i), "a")))
    origins = decode(*stream).transactions["origin"].to_pylist()
    assert origins == ["node 0", "node 1", None] * 100


def test_the_buffer_grows_drops_and_is_used_again() -> None:
    buffer = MessageBuffer()
    payloads = [bytes([i % 251]) * (i % 97) for i in range(40_000)]
    for i, payload in enumerate(payloads):
        buffer.append(payload, i)
    assert buffer.count == 40_000
    assert buffer.size_bytes == sum(map(len, payloads))
    buffer.drop_first(39_990)
    left = [buffer.data[buffer.ends[i] : buffer.ends[i + 1]].tobytes() for i in range(buffer.count)]
    assert left == payloads[39_990:]
    assert buffer.lsns.tolist() == list(range(39_990, 40_000))
    buffer.drop_first(10)
    assert (buffer.count, buffer.size_bytes, buffer.ends.tolist()) == (0, 0, [0])
    buffer.append(np.frombuffer(b"abc", dtype=np.uint8).tobytes(), 1)
    buffer.clear()
    assert buffer.count == 0
