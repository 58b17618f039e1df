"""A damaged data file is one clear error that names the file or the column, and never a value."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slotlake.decoder.errors import LakeError
from slotlake.expectations.lake_side import LakeTable
from slotlake.expectations.shapes import Compared
from slotlake.spark.read import scan
from slotlake.spark.read.columns import ScanColumn, text_of
from slotlake.spark.tables.schema import LakeColumn

pytestmark = pytest.mark.fast
FIELDS: tuple[pa.Field[Any], ...] = (
    pa.field("id", pa.int64()),
    pa.field("v", pa.string()),
    pa.field("d", pa.date32()),
)
COLUMNS = [ScanColumn(number, field) for number, field in enumerate(FIELDS, 1)]


def test_every_flipped_byte_is_other_values_or_an_error_with_the_file(tmp_path: Path) -> None:
    numbered = [field.with_metadata({"PARQUET:field_id": str(i)}) for i, field in enumerate(FIELDS, 1)]
    file, chance, outcomes = tmp_path / "data.parquet", random.Random(1), Counter[str]()
    numbers = pa.array(range(500), pa.int64())
    texts = pa.array([f"value {i}" for i in range(500)])
    arrays = [numbers, texts, numbers.cast(pa.int32()).cast(pa.date32())]
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(numbered)), file, compression="zstd")
    whole, right = file.read_bytes(), _read(file)
    for _ in range(600):
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        file.write_bytes(flipped)
        try:
            outcomes["same" if _read(file).equals(right) else "other"] += 1
        except LakeError as error:
            outcomes["error"] += 1
            assert file.name in error.where
            assert "slotlake backfill" in error.way_out
            assert "value 7" not in error.what
    assert min(outcomes["other"], outcomes["error"]) > 50, outcomes


def _read(file: Path) -> pa.Table:
    rows = scan._live_rows(str(file), COLUMNS, np.empty(0, np.int64))
    return pa.Table.from_batches(rows, pa.schema(FIELDS))


def test_a_value_that_no_type_has_names_its_column() -> None:
    day = LakeColumn("d", "d", 1082, -1, "")
    far = pa.array([2**31 - 5], pa.int32()).cast(pa.date32())
    with pytest.raises(LakeError, match="a data file is damaged") as raised:
        text_of(day, far, None)
    assert raised.value.where == "column d"
    assert text_of(day, pa.array([0], pa.int32()).cast(pa.date32()), None).to_pylist() == ["1970-01-01"]


def test_a_key_that_is_no_text_any_more_is_named_as_far_as_it_can_be() -> None:
    broken = pa.array([b"k\xa01", b"k2"], pa.large_binary())
    texts = pa.Array.from_buffers(pa.large_string(), 2, broken.buffers())
    batch = pa.RecordBatch.from_arrays([texts], ["id"])
    table = Compared("public.t", (("id", 25),), (), (), None)

    class Point:
        def tables(self) -> list[object]:
            return []

        def text_batches(self, table: str, columns: object = None) -> object:
            return iter([batch])

    lake = LakeTable(Point(), table)  # type: ignore[arg-type]
    [(_, hashes)] = list(lake.keyed())
    assert [each.name["id"] for each in lake.details(hashes.tolist()).values()] == ["k\ufffd1", "k2"]
