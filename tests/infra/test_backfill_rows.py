"""The rows that a backfill of chosen rows takes away are all found, or nothing is published."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slotlake.decoder.compiled.arrays import python_values
from slotlake.decoder.errors import LakeError
from slotlake.expectations.hashing import KEY_SEED, chain
from slotlake.infra.backfill.rows import _removed_rows


def key_hashes(keys: list[str]) -> np.ndarray:
    return np.asarray(chain([pa.array(keys)], np.full(len(keys), KEY_SEED, np.int64)))


def difference(held: list[str], changed: list[str], deleted: list[str]) -> Any:
    representation = SimpleNamespace(text=lambda values, exact: values, arrow=pa.string())
    return SimpleNamespace(
        escaped=False,
        chosen=SimpleNamespace(changed=key_hashes(changed), deleted=key_hashes(deleted)),
        mirror=SimpleNamespace(column=lambda name: SimpleNamespace(name=name, representation=representation)),
        table=SimpleNamespace(key=("id",), quoted='"public"."t"'),
        point=SimpleNamespace(
            arrow_batches=lambda *_: [pa.record_batch([pa.array(held)], names=["id"])] if held else []
        ),
    )


@pytest.mark.fast
def test_all_are_found() -> None:
    held = ["a", "b", "c", "b"]  # one stands there twice
    gone = _removed_rows(difference(held, ["b"], ["c"]))
    assert sorted(python_values(gone.keys["id"])) == ["b", "c"]
    assert gone.rows == 3
    assert _removed_rows(difference(held, [], [])).rows == 0


@pytest.mark.fast
@pytest.mark.parametrize("held", [["a", "c"], ["a"], []])
def test_one_that_is_not_found_is_no_row_to_leave(held: list[str]) -> None:
    """It would stand beside the row that comes in its place."""
    with pytest.raises(LakeError, match="the lake has no row with the key"):
        _removed_rows(difference(held, ["b"], ["c"]))
