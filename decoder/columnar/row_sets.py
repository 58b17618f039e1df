"""A chunk's rows, each with the relation version that is valid at its message.

Invariant: a row belongs to the version that was described last before its message, and to no later one.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from slotlake.decoder.columnar import scan, scan_values
from slotlake.decoder.columnar.chunk import Chunk
from slotlake.decoder.columnar.control_messages import ControlMessages
from slotlake.decoder.columnar.rows import RowSets
from slotlake.decoder.compiled.arrays import arrow, python_values
from slotlake.decoder.compiled.jit import Ints, frozen
from slotlake.decoder.protocol.relations import Relation

_TRUNCATE = ord("T")


def row_sets(chunk: Chunk, control: ControlMessages, without: Collection[tuple[str, str]] = ()) -> RowSets:
    """The rows sorted by relation version; versions with the same column types are next to each other.

    Args:
        without: tables, by schema and name, whose rows are left out.
    """
    rows = _with_truncates(chunk, control.truncates)
    numbers, versions = _versions(chunk, control, rows)
    if without:
        rows, numbers, versions = _without_tables(rows, numbers, versions, without)
    alike = _alike(versions)
    order = np.array([number for members in alike for number in members], dtype=np.int64)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    groups = np.cumsum([0, *map(len, alike)])
    first, by_version, walked, place = np.array([0, len(numbers)][: 1 + len(versions)]), None, None, None
    if len(versions) > 1:
        numbers = rank[numbers]
        first = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=len(versions)))])
        by_version, place = _stable(numbers, len(versions)), np.empty(len(numbers), np.int64)
        place[by_version] = np.arange(len(numbers))
        if len(alike) > 1:
            walked = _stable(np.repeat(np.arange(len(alike)), np.diff(groups))[numbers], len(alike))
            place = place[walked]
    return RowSets(
        versions=[versions[number] for number in order.tolist()],
        rank=rank,
        first=first,
        groups=groups.tolist(),
        rows=rows,
        order=by_version,
        walked=walked,
        place=place,
        data=chunk.data,
        lsns=chunk.lsns,
        catalog=chunk.catalog,
        error=chunk.error,
    )


def _without_tables(
    rows: Ints, numbers: Ints, versions: list[Relation], without: Collection[tuple[str, str]]
) -> tuple[Ints, Ints, list[Relation]]:
    stay = np.array([(each.schema, each.table) not in without for each in versions], np.bool_)
    row_stays = stay[numbers]
    place = np.cumsum(stay) - 1
    remaining = [version for version, stays in zip(versions, stay.tolist(), strict=True) if stays]
    return np.ascontiguousarray(rows[:, row_stays]), place[numbers[row_stays]], remaining


def _stable(numbers: Ints, count: int) -> Ints:
    """The order of the numbers, all below ``count``; numpy sorts 16-bit numbers several times faster."""
    order: Ints = np.argsort(numbers.astype(np.uint16 if count <= 1 << 16 else np.int64), kind="stable")
    return order


def _alike(versions: list[Relation]) -> list[list[int]]:
    """The numbers of versions whose columns have the same types; many versions share one tuple of columns."""
    by_columns: dict[int, list[int]] = {}
    for number, version in enumerate(versions):
        by_columns.setdefault(id(version.columns), []).append(number)
    alike: dict[bytes, list[int]] = {}
    for members in by_columns.values():
        alike.setdefault(versions[members[0]].kinds, []).extend(members)
    return list(alike.values())


def _versions(chunk: Chunk, control: ControlMessages, rows: Ints) -> tuple[Ints, list[Relation]]:
    """For each row the number of its relation version, counted by first appearance; and the versions."""
    messages, ids = rows[scan.ROW_MESSAGE], rows[scan.ROW_RELATION]
    if len(ids) == 0:
        return np.empty(0, np.int64), []
    if (ids == ids[0]).all() and len(control.versions.get(int(ids[0]), ())) == 1:
        at, version = control.versions[int(ids[0])][0]
        if at < messages[0]:
            return np.zeros(len(ids), np.int64), [version]
    # Space for one more than are described: if it is used, the loop below finds one that is not described.
    first, codes = np.empty(len(control.versions) + 1, np.int64), np.empty(len(ids), np.int64)
    slots = np.full(4 << len(first).bit_length(), -1, np.int64)
    first = first[: scan_values.number(frozen(ids), slots, codes, first)]
    current: list[Relation] = []
    later: list[tuple[int, int, Relation]] = []
    for code, (relation_id, at) in enumerate(zip(ids[first].tolist(), messages[first].tolist(), strict=True)):
        history = control.versions.get(relation_id, [])
        if not history or at < history[0][0]:
            raise chunk.error(f"relation {relation_id} was not described", at, 1)
        current.append(history[0][1])
        if len(history) > 1:
            later += [(where, code, version) for where, version in history[1:]]
    return _renumbered(codes, messages, current, later) if later else (codes, current)


def _renumbered(
    codes: Ints, messages: Ints, current: list[Relation], later: list[tuple[int, int, Relation]]
) -> tuple[Ints, list[Relation]]:
    """The same, if versions replace others within the chunk, from a message on."""
    versions = list(current)
    numbers = codes.copy()
    for where, code, version in sorted(later, key=lambda each: each[0]):
        versions.append(version)
        behind = int(np.searchsorted(messages, where))
        numbers[behind:][codes[behind:] == code] = len(versions) - 1
    new_numbers: dict[Relation, int] = {}
    for i in python_values(arrow(numbers).unique()):
        new_numbers.setdefault(versions[i], len(new_numbers))
    return np.array([new_numbers.get(version, 0) for version in versions])[numbers], list(new_numbers)


def _with_truncates(chunk: Chunk, truncates: list[tuple[int, int, int, Relation]]) -> Ints:
    """Rows with one more for each truncated table, in the order of their messages."""
    if not truncates:
        return chunk.rows
    extra = np.full((scan.ROW_FIELDS, len(truncates)), -1, dtype=np.int64)
    for i, (at, seq, txn, relation) in enumerate(truncates):
        extra[scan.ROW_MESSAGE, i], extra[scan.ROW_SEQ, i], extra[scan.ROW_TXN, i] = at, seq, txn
        extra[scan.ROW_OP, i], extra[scan.ROW_OLD, i] = _TRUNCATE, 0
        extra[scan.ROW_RELATION, i] = relation.relation_id
    rows = np.concatenate([chunk.rows, extra], axis=1)
    return rows.take(np.argsort(rows[scan.ROW_MESSAGE], kind="stable"), axis=1)
