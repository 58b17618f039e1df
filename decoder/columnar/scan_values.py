"""Numbers the tables of the rows that `scan.walk` has noted, and fills the fixed columns of the result.

Invariant: every row number and message number given exists, so nothing here needs to check one.
"""

from __future__ import annotations

from slotlake.decoder.compiled.jit import Bytes, Ints, Lengths, Unsigned, compiled, unsigned
from slotlake.decoder.compiled.memory import bare

_SPREAD = 0x9E3779B97F4A7C15


@compiled
def number(ids: Ints, slots: Ints, codes: Ints, first: Ints) -> int:
    """Number ids by first appearance.

    Args:
        ids: int64[n].
        slots: int64[2 ** k], all -1, more than two for each of ``first``.
        codes: int64[n], filled in.
        first: int64, filled in: for each number the row in which it comes first.

    Returns:
        How many numbers there are, at most the length of ``first``.
    """
    rows, room, mask = len(ids), len(first), len(slots) - 1
    ids, slots, codes, first = bare(ids), bare(slots), bare(codes), bare(first)
    count = 0
    for i in range(rows):
        if i > 0 and ids[i] == ids[i - 1]:
            codes[i] = codes[i - 1]
            continue
        at = ((unsigned(ids[i]) * unsigned(_SPREAD)) >> unsigned(32)) & unsigned(mask)
        while slots[at] >= 0 and ids[first[slots[at]]] != ids[i]:
            at = (at + unsigned(1)) & unsigned(mask)
        if slots[at] < 0:
            if count == room:
                return count
            slots[at], first[count] = count, i
            count += 1
        codes[i] = slots[at]
    return count


@compiled
def fixed_columns(  # noqa: PLR0913, PLR0917 - arrays, as compiled code takes them
    seqs: Ints, ops: Ints, txns: Ints, messages: Ints, olds: Ints, lsns: Unsigned, order: Ints,
    seq: Ints, op: Bytes, txn: Lengths, lsn: Ints, old: Bytes,
) -> None:  # fmt: skip
    """Fill the columns of each row that are not values of its table.

    Args:
        seqs, ops, txns, messages, olds: int64[n], as noted.
        lsns: uint64[messages].
        order: int64[n], the row for each place; of length 0 if rows stay in their order.
        seq, op, txn, lsn, old: filled in.
    """
    count, ordered = len(seq), len(order) > 0
    seqs, ops, txns, messages, olds = bare(seqs), bare(ops), bare(txns), bare(messages), bare(olds)
    lsns, order, seq, op, txn = bare(lsns), bare(order), bare(seq), bare(op), bare(txn)
    lsn, old = bare(lsn), bare(old)
    for i in range(count):
        row = order[i] if ordered else i
        seq[i], op[i], txn[i], old[i] = seqs[row], ops[row], txns[row], olds[row]
        lsn[i] = lsns[messages[row]]
