"""Values read while their rows are walked, and those that are not: what the plain reader makes of them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.protocol.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    NoValue,
    RelationMessage,
    Update,
)
from slotlake.decoder.protocol.relations import Column, Relation
from tests.decoder.agreement import Meaning, Stream, columnar, plain
from tests.decoder.streams import TIME
from tests.decoder.wire import encode

pytestmark = pytest.mark.fast

Value = str | NoValue


def numeric(precision: int, scale: int) -> tuple[int, int]:
    return 1700, (precision << 16 | scale) + 4


INT2, INT4, INT8, OID, TEXT, BOOL, FLOAT8 = (
    (21, -1),
    (23, -1),
    (20, -1),
    (26, -1),
    (25, -1),
    (16, -1),
    (701, -1),
)
DATE, TIMESTAMP, TIMESTAMPTZ = (1082, -1), (1114, -1), (1184, -1)
SMALL = ["0", "7", "-7", "42", "-32768", "32767", "00000012"]
# Usual forms, and the edges of what is read at once: 8, 16 and 19 digits, signs, fractions, infinities.
VALUES: dict[tuple[int, int], list[str]] = {
    INT2: SMALL,
    INT4: [*SMALL, "12345678", "-12345678", "123456789", "2147483647", "-2147483648"],
    INT8: [*SMALL, *("9" * n for n in range(1, 19)), "9223372036854775807", "-9223372036854775808"],
    OID: ["0", "16384", "4294967295"],
    TEXT: ["", "x", "a note", "ünïcode", "n" * 40],
    BOOL: ["t", "f"],
    FLOAT8: ["0", "-0", "1.5", "NaN", "Infinity", "1e-300"],
    numeric(12, 2): [
        "0.00", "1.37", "-1.37", "12345.67", "123456.78", "1234567.89", "12345678.90", "9999999999.99",
        "-0.50", "NaN", "Infinity", "-Infinity", "12345678901.00", "0.5",
    ],
    numeric(9, 0): ["0", "1", "-1", "999999999", "12345678", "1234567890"],
    numeric(8, 8): ["0.12345678", "-0.00000001"],
    numeric(6, 3): ["0.001", "999.999", "1000.000", "12.5"],
    numeric(38, 10): ["1234567890123456789012345678.0123456789", "0.0000000000"],
    DATE: ["2026-01-01", "0001-01-01", "9999-12-31", "infinity", "-infinity", "0044-03-15 BC", "10000-01-01"],
    TIMESTAMP: [
        "2026-01-01 00:00:00", "2026-02-28 23:59:59.999999", "2026-01-01 00:00:00.5", "0001-01-01 00:00:00",
        "infinity", "0044-03-15 00:00:00 BC", "294276-12-31 23:59:59.999999",
    ],
    TIMESTAMPTZ: [
        "2026-01-01 00:00:00+00", "1969-12-31 23:59:59.999999+00", "-infinity", "10000-01-01 00:00:00+00",
    ],
}  # fmt: skip
DAMAGED: dict[tuple[int, int], list[str]] = {
    INT2: ["", "-", "+1", "1 ", "1.0", "abc", "1234567x", ":", "/"],
    INT4: ["", "-", "2147483648", "-2147483649", "12345678x", "x1234567", "12345678901234567890"],
    INT8: ["9223372036854775808", "-9223372036854775809", "1234567890123456789x", "12345678 0123456"],
    BOOL: ["", "true", "T", "tt"],
    numeric(12, 2): ["", ".", "1.", ".37", "1.2.3", "1,37", "12345x.67", "-", "1..3", "x.37"],
    DATE: ["", "2026-02-29", "2026-13-01", "2026-1-01", "2026-01-01x", "20260-1-01", "2026/01/01"],
    TIMESTAMP: ["2026-01-01", "2026-01-01 24:00:01", "2026-01-01 00:00:00.", "2026-01-01 00:00:00+00"],
    TIMESTAMPTZ: ["2026-01-01 00:00:00", "2026-01-01 00:00:00+01", "2026-01-01T00:00:00+00"],
}


def stream_of(*messages: Message) -> Stream:
    whole = [Begin(1000, TIME, 1), *messages, Commit(1000, 1048, TIME)]
    return [(1000 + i, encode(message)) for i, message in enumerate(whole)]


def table(number: int, kinds: list[tuple[int, int]]) -> Relation:
    columns = tuple(Column(f"c{i}", oid, typmod, True) for i, (oid, typmod) in enumerate(kinds))
    return Relation(number, "s", f"t{number}", "f", columns)


def tuple_of(draw: random.Random, relation: Relation, usual: bool, *, old: bool = False) -> tuple[Value, ...]:
    found: list[Value] = []
    for column in relation.columns:
        texts = VALUES[column.type_oid, column.typmod]
        chance = draw.random()
        if not usual and chance < 0.1:
            found.append(NoValue.NULL)
        elif not usual and chance < 0.15 and not old:
            found.append(NoValue.UNCHANGED)
        else:
            found.append(draw.choice(texts[:2] if usual else texts))
    return tuple(found)


def changes(draw: random.Random, relations: list[Relation], count: int) -> list[Message]:
    """Rows of all tables in turn; in some of them there is nothing out of the ordinary."""
    usual = {relation.relation_id: draw.random() < 0.5 for relation in relations}
    made: list[Message] = []
    for _ in range(count):
        relation = draw.choice(relations)
        number, plain_one = relation.relation_id, usual[relation.relation_id]
        old = tuple_of(draw, relation, plain_one, old=True)
        new = tuple_of(draw, relation, plain_one)
        kinds: list[Message] = [Insert(number, new), Update(number, "O", old, new), Delete(number, "O", old)]
        made.append(draw.choice([kinds[0], *kinds]))
    return made


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(seed=st.integers(0, 2**32))
def test_plain_and_odd_values_of_many_tables_in_turn(seed: int) -> None:
    draw = random.Random(seed)
    shapes = [draw.choices(list(VALUES), k=draw.randint(1, 9)) for _ in range(3)]
    relations = [table(number, draw.choice(shapes)) for number in range(1, draw.randint(2, 8))]
    rows = changes(draw, relations, draw.randint(1, 40))
    stream = stream_of(*map(RelationMessage, relations), *rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slotlake.decoder.columnar.rows._VALUES_MAX", draw.choice([3, 40, 1 << 17]))
        patch.setattr("slotlake.decoder.columnar.rows._COLUMNS_MIN", draw.choice([1, 2, 16]))
        patch.setattr("slotlake.decoder.columnar.rows._READ_SHARE", draw.choice([1, 1 / 32]))
        assert columnar(stream) == plain(stream)


def outcome(read: Callable[[Stream], Meaning], stream: Stream) -> Meaning | None:
    try:
        return read(stream)
    except ProtocolError:
        return None


@pytest.mark.parametrize(
    ("kind", "text"),
    [(kind, text) for kind, texts in DAMAGED.items() for text in texts],
    ids=repr,
)
def test_what_no_output_function_prints_is_refused(kind: tuple[int, int], text: str) -> None:
    relation = table(7, [INT4, kind, TEXT])
    rows = [Insert(7, ("1", value, "note")) for value in (*VALUES[kind][:2], text, VALUES[kind][0])]
    stream = stream_of(RelationMessage(relation), *rows)
    assert outcome(plain, stream) is None
    with pytest.raises(ProtocolError, match=r"column 'c1' of s\.t7"):
        columnar(stream)


def test_a_table_without_columns_has_no_values() -> None:
    empty, full = table(3, []), table(7, [INT4])
    described = [RelationMessage(empty), RelationMessage(full)]
    fine = stream_of(*described, Insert(7, ("1",)), Insert(3, ()), Update(3, "O", (), ()), Delete(3, "O", ()))
    assert columnar(fine) == plain(fine)
    odd: list[Message] = [Insert(3, ("1",)), Update(3, "O", (NoValue.NULL,), ()), Delete(3, "K", ("1",))]
    for message in odd:
        with pytest.raises(ProtocolError, match="another number of columns than its table"):
            columnar(stream_of(*described, Insert(7, ("1",)), message))


@pytest.mark.parametrize("kind", list(VALUES), ids=repr)
def test_each_value_alone_and_among_others(kind: tuple[int, int]) -> None:
    relation = table(7, [kind])
    for text in VALUES[kind]:
        stream = stream_of(RelationMessage(relation), Insert(7, (text,)))
        assert columnar(stream) == plain(stream)
    stream = stream_of(RelationMessage(relation), *(Insert(7, (text,)) for text in VALUES[kind]))
    assert columnar(stream) == plain(stream)
