"""Random streams that a server could send, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from slotlake.decoder.protocol.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    NoValue,
    Origin,
    RelationMessage,
    Truncate,
    TypeMessage,
    Update,
    Value,
)
from slotlake.decoder.protocol.relations import Column, Relation
from tests.decoder.agreement import Stream
from tests.decoder.wire import encode

TIME = 1_795_253_578_287_819
TEXTS: dict[tuple[int, int], list[str]] = {
    (16, -1): ["t", "f"],
    (17, -1): ["\\x", "\\x00ff"],
    (20, -1): ["0", "-9223372036854775808", "123456789012"],
    (23, -1): ["0", "-1", "2147483647"],
    (25, -1): ["", "a", "üñï", "long " * 30, "\n"],
    (701, -1): ["0.1", "NaN", "-Infinity", "1e+20"],
    (1082, -1): ["2026-11-21", "infinity", "0044-03-15 BC"],
    (1184, -1): ["2026-11-21 00:00:00+00", "1999-12-31 23:59:59.999999+00", "-infinity"],
    (1700, ((6 << 16) | 2) + 4): ["0.00", "-1234.56", "NaN"],
    (1700, -1): ["1.10", "Infinity"],
    (16999, -1): ["sad", "ok"],
}

# Tables whose columns have the same types are read together.
ALIKE = [(23, -1), (1082, -1), (25, -1)]


@st.composite
def relations(draw: st.DrawFn, relation_id: int) -> Relation:
    """Any version of a table."""
    any_kinds = st.lists(st.sampled_from(sorted(TEXTS)), max_size=5)
    kinds = draw(st.one_of(any_kinds, st.just(ALIKE)))
    described = tuple(
        Column(draw(st.sampled_from("abc")), oid, mod, draw(st.booleans())) for oid, mod in kinds
    )
    return Relation(relation_id, "public", f"t{relation_id}", draw(st.sampled_from("dnfi")), described)


def _value(draw: st.DrawFn, column: Column, *, old: bool) -> Value:
    choices: list[Value] = [*TEXTS[column.type_oid, column.typmod], NoValue.NULL]
    return draw(st.sampled_from(choices if old else [*choices, NoValue.UNCHANGED]))


def _row(draw: st.DrawFn, relation: Relation) -> Message:
    def values(*, old: bool) -> tuple[Value, ...]:
        return tuple(_value(draw, c, old=old) for c in relation.columns)

    old_kind = draw(st.sampled_from(["", "K", "O"]))
    before = values(old=True) if old_kind else None
    match draw(st.sampled_from("IIUUD")):
        case "I":
            return Insert(relation.relation_id, values(old=False))
        case "U":
            return Update(relation.relation_id, old_kind, before, values(old=False))
        case _:
            return Delete(relation.relation_id, old_kind or "K", before or values(old=True))


@st.composite
def transactions(draw: st.DrawFn, known: dict[int, Relation], number: int) -> list[Message]:
    """One transaction, possibly empty; tables are described before use and sometimes anew."""
    position = 1000 * (number + 1)
    found: list[Message] = [Begin(position, TIME + number, 700 + number)]
    if draw(st.integers(0, 4)) == 0:
        found.append(Origin(number, f"node {number % 2}"))
    for _ in range(draw(st.integers(0, 6))):
        relation_id = draw(st.integers(1, 3))
        if relation_id not in known or draw(st.integers(0, 5)) == 0:
            known[relation_id] = draw(relations(relation_id))
            found += [TypeMessage(16999, "s", "mood"), RelationMessage(known[relation_id])]
        match draw(st.integers(0, 9)):
            case 0:
                found.append(Truncate(draw(st.booleans()), False, tuple(sorted(known))))
            case 1:
                loose = draw(st.booleans())
                found.append(LogicalMessage(not loose, position - 1, "p", b"content"))
            case _:
                found.append(_row(draw, known[relation_id]))
    return [*found, Commit(position, position + 48, TIME + number)]


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Several transactions, and messages outside of them."""
    known: dict[int, Relation] = {}
    messages: list[Message] = []
    for number in range(draw(st.integers(1, 4))):
        if draw(st.integers(0, 5)) == 0:
            messages.append(LogicalMessage(False, 1000 * number + 500, "loose", b"\0"))
        messages += draw(transactions(known, number))
    return [(10 * i, encode(message)) for i, message in enumerate(messages)]
