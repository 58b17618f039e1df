"""Deletion vectors are read no more often, and no more of them, than is needed; damaged ones are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.tables.deletion_vectors import VectorFiles, puffin_of, vectors, vectors_at

pytestmark = pytest.mark.fast


@pytest.mark.seconds
def test_of_a_large_file_only_parts_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    positions = {f"s3://lake/{n}.parquet": np.unique(rng.integers(0, 40 << 20, 700_000)) for n in range(4)}
    content, places = puffin_of(positions, "a test")
    assert len(content) > 4 << 20
    file = tmp_path / "large.puffin"
    file.write_bytes(content)
    monkeypatch.setattr(lake_files, "read", None)
    for name, place in places.items():
        found = vectors_at(f"file://{file}", len(content), {name: place})
        assert found.keys() == {name}
        assert np.array_equal(found[name], positions[name])


def test_a_file_is_taken_apart_once_in_a_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan asks for those of each data file by itself: a thousand files would be a million vectors."""
    positions = {f"s3://lake/{n}.parquet": np.arange(n + 1, dtype=np.int64) for n in range(50)}
    file = tmp_path / "many.puffin"
    file.write_bytes(puffin_of(positions, "a test")[0])
    location, read, times = f"file://{file}", lake_files.read, list[str]()

    def counted(where: str) -> bytes:
        times.append(where)
        return read(where)

    monkeypatch.setattr(lake_files, "read", counted)
    found = VectorFiles()
    for name, rows in positions.items():
        assert found.positions(location, name).tolist() == rows.tolist()
    assert found.positions(location, "s3://lake/other.parquet").tolist() == []
    assert times == [location]


@pytest.mark.parametrize("at", [0, 5, 20, -1])
def test_a_damaged_vector_is_refused(tmp_path: Path, at: int) -> None:
    content, places = puffin_of({"a": np.arange(100, dtype=np.int64)}, "a test")
    [(start, count)] = places.values()
    damaged = bytearray(content)
    damaged[start + (at if at >= 0 else count + at)] ^= 1
    file = tmp_path / "damaged.puffin"
    file.write_bytes(damaged)
    with pytest.raises(LakeError, match="deletion vector is damaged"):
        vectors(f"file://{file}", ["a"])
    with pytest.raises(LakeError, match="deletion vector is damaged"):
        vectors_at(f"file://{file}", len(content), places)
