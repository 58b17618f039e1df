"""The compiled walk over received messages: it checks every byte and notes where each part is.

`walk` goes over all messages once, checks begin, commit and row messages to the last byte against
the grammar in `reader`, keeps the order of transactions, and notes where each tuple starts.  Control
messages are only noted; `reader` reads them.  Origins are the exception: each transaction may have one, so
compiled code reads them (`origins`).  `scan_values` then finds each column's bytes.

Invariant: a tuple whose position `walk` has noted is completely within its message, so later passes
need no bounds checks; a message that breaks the grammar ends the walk with an error code and an
offset.  Compiled code never raises and never reads past a message's end.
"""

from __future__ import annotations

from slotlake.decoder.compiled.jit import (
    Bytes,
    Ints,
    Lengths,
    compiled,
    inlined,
    read_int64,
    read_uint16,
    read_uint32,
)
from slotlake.decoder.compiled.memory import bare
from slotlake.decoder.protocol.reader import EPOCH_MICROSECONDS, TIME_MAX, TIME_MIN

# Fields (first axis) of the arrays that `walk` fills; the second axis is the row, transaction, message.
ROW_MESSAGE, ROW_SEQ, ROW_OP, ROW_TXN, ROW_RELATION, ROW_OLD, ROW_OLD_AT, ROW_NEW_AT = range(8)
ROW_FIELDS = 8
TXN_XID, TXN_COMMIT_LSN, TXN_END_LSN, TXN_TIME, TXN_BEGIN, TXN_COMMIT = range(6)
TXN_FIELDS = 6
CONTROL_MESSAGE, CONTROL_SEQ, CONTROL_TXN = range(3)
CONTROL_FIELDS = 3

# The walk's own state, which a later call continues if a chunk ends inside a transaction.
OPEN, XID, FINAL_LSN, HAS_CHANGES, NEXT_SEQ, NEXT_TXN, BEGIN_AT = range(7)
STATE_FIELDS = 7
# The walk's report: how far it came, and how much of each array is filled.
AT, ROWS, TXNS, CONTROLS, REACHED, BAD_OFFSET, LAST_COMMIT_LSN, LAST_END_LSN = range(8)
REPORT_FIELDS = 8

NO_LIMIT = 2**63 - 1

REASONS = (
    "",
    "the message ends too early",
    "bytes are left over after the message",
    "the message has an unknown type",
    "the message belongs to streaming or two_phase, but this option is off",
    "the tuple has an unexpected tag",
    "unknown kind of value",
    "a value is binary, but the option binary is off",
    "an old row has an unchanged value",
    "reserved flags are set",
    "the position is not set",
    "the position is larger than any position in WAL can be",
    "the time is outside the years 1 to 9999",
    "the message may not come outside of a transaction",
    "a transaction begins inside another",
    "Commit and Begin have different positions",
    "the record ends before it starts",
)
_FINE = 0
_TOO_SHORT, _TRAILING_BYTES, _UNKNOWN, _LATER, _TAG, _KIND, _BINARY, _OLD_UNCHANGED = range(1, 9)
_FLAGS, _NO_LSN, _LSN_RANGE, _TIME_RANGE, _OUTSIDE, _NESTED, _DISAGREE, _BACKWARDS = range(9, 17)


@inlined
def _tuple(  # noqa: PLR0911 - one fault each
    data: Bytes, p: int, end: int, old: bool, binary: bool
) -> tuple[int, int]:
    """Check a tuple at p: (code, position after it or of the fault)."""
    if end - p < 2:
        return _TOO_SHORT, p
    columns = read_uint16(data, p)
    p += 2
    for _ in range(columns):
        if p >= end:
            return _TOO_SHORT, p
        kind = data[p]
        if kind == 116 or (kind == 98 and binary):
            if end - p < 5:
                return _TOO_SHORT, p + 1
            length = read_uint32(data, p + 1)
            p += 5
            if length > end - p:
                return _TOO_SHORT, p
            p += length
        elif kind == 110:
            p += 1
        elif kind == 117:
            if old:
                return _OLD_UNCHANGED, p
            p += 1
        else:
            return (_BINARY if kind == 98 else _KIND), p
    return _FINE, p


@inlined
def _row(  # noqa: PLR0911
    data: Bytes, p: int, end: int, rows: Ints, room: int, row: int, binary: bool
) -> tuple[int, int]:
    """Check an insert, update or delete at p and note its parts: (code, position)."""
    op = data[p]
    if end - p < 5:
        return _TOO_SHORT, p + 1
    rows[ROW_OP * room + row] = op
    rows[ROW_RELATION * room + row] = read_uint32(data, p + 1)
    rows[ROW_OLD * room + row] = 0
    rows[ROW_OLD_AT * room + row] = -1
    rows[ROW_NEW_AT * room + row] = -1
    p += 5
    if p >= end:
        return _TOO_SHORT, p
    tag = data[p]
    if tag == 75 or tag == 79:  # noqa: PLR1714 - numba compares numbers, not sets
        if op == 73:
            return _TAG, p
        rows[ROW_OLD * room + row] = tag
        rows[ROW_OLD_AT * room + row] = p + 1
        code, p = _tuple(data, p + 1, end, True, binary)
        if code != _FINE or op == 68:
            return code, p
        if p >= end:
            return _TOO_SHORT, p
        tag = data[p]
    if tag != 78 or op == 68:
        return _TAG, p
    rows[ROW_NEW_AT * room + row] = p + 1
    return _tuple(data, p + 1, end, False, binary)


@inlined
def _lsn_fault(lsn: int) -> int:
    if lsn < 0:
        return _LSN_RANGE
    return _NO_LSN if lsn == 0 else _FINE


@inlined
def _begin(data: Bytes, p: int, end: int, state: Ints, report: Ints) -> tuple[int, int]:
    if end - p < 21:
        return _TOO_SHORT, p + 1 + (0 if end - p < 9 else 8 if end - p < 17 else 16)
    lsn, time = read_int64(data, p + 1), read_int64(data, p + 9)
    code = _lsn_fault(lsn)
    if code != _FINE:
        return code, p + 1
    if time < TIME_MIN or time > TIME_MAX:
        return _TIME_RANGE, p + 9
    if state[OPEN] == 1:
        return _NESTED, p
    state[OPEN] = 1
    state[HAS_CHANGES] = 0
    state[FINAL_LSN] = lsn
    state[BEGIN_AT] = report[AT]
    state[XID] = read_uint32(data, p + 17)
    return _FINE, p + 21


@inlined
def _commit(  # noqa: PLR0911
    data: Bytes, p: int, end: int, state: Ints, txns: Ints, room: int, report: Ints
) -> tuple[int, int]:
    if end - p < 26:
        short = end - p
        return _TOO_SHORT, p + (1 if short < 2 else 2 if short < 10 else 10 if short < 18 else 18)
    if data[p + 1] != 0:
        return _FLAGS, p + 1
    commit_lsn, end_lsn, time = read_int64(data, p + 2), read_int64(data, p + 10), read_int64(data, p + 18)
    for lsn, at in ((commit_lsn, p + 2), (end_lsn, p + 10)):
        code = _lsn_fault(lsn)
        if code != _FINE:
            return code, at
    if time < TIME_MIN or time > TIME_MAX:
        return _TIME_RANGE, p + 18
    if state[OPEN] == 0:
        return _OUTSIDE, p
    if commit_lsn != state[FINAL_LSN]:
        return _DISAGREE, p + 2
    if end_lsn <= commit_lsn:
        return _BACKWARDS, p + 10
    if state[HAS_CHANGES] == 1:
        number = report[TXNS]
        txns[TXN_XID * room + number] = state[XID]
        txns[TXN_COMMIT_LSN * room + number] = commit_lsn
        txns[TXN_END_LSN * room + number] = end_lsn
        txns[TXN_TIME * room + number] = time + EPOCH_MICROSECONDS
        txns[TXN_BEGIN * room + number] = state[BEGIN_AT]
        txns[TXN_COMMIT * room + number] = report[AT]
        report[TXNS] += 1
        state[NEXT_TXN] += 1
    state[OPEN] = 0
    report[LAST_COMMIT_LSN] = commit_lsn
    report[LAST_END_LSN] = end_lsn
    return _FINE, p + 26


@inlined
def _control(
    data: Bytes, p: int, end: int, state: Ints, controls: Ints, room: int, report: Ints
) -> tuple[int, int]:
    """Note a message that the plain reader will read; only its place in the stream is checked."""
    tag = data[p]
    loose = tag == 77 and end - p >= 2 and data[p + 1] & 1 == 0
    if state[OPEN] == 0 and not loose:
        return _OUTSIDE, p
    at = report[CONTROLS]
    controls[CONTROL_MESSAGE * room + at] = report[AT]
    controls[CONTROL_SEQ * room + at] = state[NEXT_SEQ]
    controls[CONTROL_TXN * room + at] = -1 if loose else state[NEXT_TXN]
    report[CONTROLS] += 1
    if tag == 84 or tag == 77:  # noqa: PLR1714
        state[NEXT_SEQ] += 1
        if not loose:
            state[HAS_CHANGES] = 1
    return _FINE, end


@inlined
def _at_limit(data: Bytes, p: int, end: int, is_open: int, limit: int) -> bool:
    """True if this message begins something at or after the limit.

    A transaction's position is the start of its commit record.  The position of a message outside of
    transactions is the end of its record, so it is after the limit only if it is greater.
    """
    if data[p] == 66 and end - p >= 9:
        return limit != NO_LIMIT and read_int64(data, p + 1) >= limit
    if data[p] == 77 and end - p >= 10 and is_open == 0:
        return read_int64(data, p + 2) > limit
    return False


@inlined
def _one_of(letter: int, letters: bytes) -> bool:
    for other in letters:  # noqa: SIM110 - compiled
        if letter == other:
            return True
    return False


@inlined
def _message(  # noqa: PLR0913, PLR0917 - arrays, as compiled code takes them
    data: Bytes,
    p: int,
    end: int,
    binary: bool,
    state: Ints,
    rows: Ints,
    txns: Ints,
    controls: Ints,
    room: int,
    report: Ints,
) -> tuple[int, int]:
    """Check one message and note its content: (code, position)."""
    tag = data[p]
    if tag == 73 or tag == 85 or tag == 68:  # noqa: PLR1714 - I, U, D
        row = report[ROWS]
        code, p = _row(data, p, end, rows, room, row, binary)
        if code == _FINE and p == end and state[OPEN] == 0:
            return _OUTSIDE, p
        rows[ROW_MESSAGE * room + row] = report[AT]
        rows[ROW_SEQ * room + row] = state[NEXT_SEQ]
        rows[ROW_TXN * room + row] = state[NEXT_TXN]
        report[ROWS] += 1
        state[NEXT_SEQ] += 1
        state[HAS_CHANGES] = 1
        return code, p
    if tag == 66:
        return _begin(data, p, end, state, report)
    if tag == 67:
        return _commit(data, p, end, state, txns, room, report)
    if _one_of(tag, b"ORYTM"):
        return _control(data, p, end, state, controls, room, report)
    return (_LATER if _one_of(tag, b"SEcAbPKrp") else _UNKNOWN), p


@inlined
def _walk(  # noqa: PLR0913, PLR0917
    data: Bytes, ends: Ints, count: int, limit: int, binary: bool, state: Ints, rows: Ints, txns: Ints,
    controls: Ints, room: int, report: Ints, safe_state: Ints, safe_report: Ints,
) -> int:  # fmt: skip
    """`walk`, over bare memory; ``room``: length of each field's array."""
    while report[AT] < count:
        p, end = ends[report[AT]], ends[report[AT] + 1]
        if p >= end:
            report[BAD_OFFSET] = 0
            return _TOO_SHORT
        if _at_limit(data, p, end, state[OPEN], limit):
            report[REACHED] = 1
            break
        code, stop = _message(data, p, end, binary, state, rows, txns, controls, room, report)
        if code == _FINE and stop != end:
            code = _TRAILING_BYTES
        if code != _FINE:
            report[BAD_OFFSET] = stop - p
            return code
        report[AT] += 1
        if state[OPEN] == 0:
            for i in range(STATE_FIELDS):
                safe_state[i] = state[i]
            for i in range(REPORT_FIELDS):
                safe_report[i] = report[i]
    return _FINE


@compiled
def walk(  # noqa: PLR0913, PLR0917 - arrays, as compiled code takes them
    data: Bytes, ends: Ints, limit: int, partial: bool, binary: bool,
    state: Ints, rows: Ints, txns: Ints, controls: Ints, report: Ints,
) -> int:  # fmt: skip
    """Go over all messages; return 0 or the code of the first error, at ``report[AT]``.

    ``binary``: the stream may contain binary values.  Unless ``partial``, state and report go back to the
    last place outside of any transaction.

    Args:
        data: uint8[bytes], the messages back to back.
        ends: int64[messages + 1], offsets into ``data``.
        state: int64[STATE_FIELDS], which the next chunk continues; changed.
        rows, txns, controls: int64[fields, room], filled in.
        report: int64[REPORT_FIELDS], filled in.
    """
    safe_state, safe_report = state.copy(), report.copy()
    room, count = rows.shape[1], len(ends) - 1
    code = _walk(
        bare(data), bare(ends), count, limit, binary, bare(state), bare(rows), bare(txns), bare(controls),
        room, bare(report), bare(safe_state), bare(safe_report),
    )  # fmt: skip
    if code == _FINE and not partial:
        safe_report[REACHED] = report[REACHED]
        state[:] = safe_state
        report[:] = safe_report
    return code


@compiled
def origins(data: Bytes, ends: Ints, messages: Ints, start: Ints, length: Lengths) -> int:
    """Find the name in each of these origin messages; returns the first that is damaged, or -1.

    Args:
        data: uint8[bytes], the messages back to back.
        ends: int64[all messages + 1], offsets into ``data``.
        messages: int64[origins], indices of the origin messages.
        start, length: int64[origins] and int32[origins], filled in: the span of each name.
    """
    for i in range(len(messages)):
        p, end = ends[messages[i]], ends[messages[i] + 1]
        if end - p < 10 or read_int64(data, p + 1) < 0 or data[end - 1] != 0:
            return i
        for q in range(p + 9, end - 1):
            if data[q] == 0:
                return i
        start[i], length[i] = p + 9, end - p - 10
    return -1
