"""Folded rows as the lake keeps them: each column in its form (`decoder.types.representations`).

The fold works on values as the change log has them; only what is handed to Spark is in the lake's form, so
that equal texts stay equal whatever the form.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from slotlake.spark.tables.schema import LakeColumn


def in_representation(columns: Sequence[LakeColumn], rows: pa.Table) -> pa.Table:
    """The same rows with the columns ``n<i>``/``xn<i>`` and ``m<i>``/``xm<i>`` in their columns' forms."""
    for i, column in enumerate(columns):
        if column.form:
            for prefix in ("n", "m"):
                rows = _converted(column, rows, f"{prefix}{i}")
    return rows


def _converted(column: LakeColumn, rows: pa.Table, name: str) -> pa.Table:
    if name not in rows.column_names:
        return rows
    exact_name = f"x{name}"
    exact_texts = rows[exact_name] if exact_name in rows.column_names else None
    typed, exact = column.representation.keep(rows[name], exact_texts)
    rows = rows.set_column(rows.column_names.index(name), name, typed)
    if exact_texts is not None:
        rows = rows.drop_columns([exact_name])
    return rows if exact is None else rows.append_column(exact_name, exact)
