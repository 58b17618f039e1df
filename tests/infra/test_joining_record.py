"""What is on disk of a half copied table that joins: which notes hold, and up to where it may be brought."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from slotlake.decoder.compiled.arrays import python_values
from slotlake.decoder.copy.files import CopiedFile
from slotlake.decoder.copy.parts import Part
from slotlake.infra.copy.joining_record import CopyStart, JoiningRecord, JoiningTable, KeyedBy

PARTS = [Part(0, "ONLY big", None, 5, 10, 100), Part(1, "ONLY big", 5, None, 10, 100)]


def since(relation_id: int = 7, position: int = 100) -> CopyStart:
    return CopyStart("public", "big", relation_id, position, "10:12:11", ("1", 1), (KeyedBy("id", 23, -1),))


def begun(folder: Path, relation_id: int = 7) -> JoiningRecord:
    record = JoiningRecord(folder)
    record.beginning = {relation_id: since(relation_id)}
    record.begin(relation_id, "f", "", PARTS)
    return record


def copied(folder: Path, number: int) -> CopiedFile:
    path = folder / f"copy-{number:05d}-00000.parquet"
    path.write_bytes(b"rows")
    return CopiedFile(path, 10, 4, ())


@pytest.mark.parametrize(
    ("noted", "position", "reached"),
    [
        ([], 100, True),
        ([], 101, False),
        ([], 99, False),  # the lake was moved back
        ([(100, 120)], 120, True),
        ([(100, 120), (121, 130)], 130, False),  # something else moved it from 120 to 121
        ([(120, 130), (100, 120)], 130, True),
        ([(100, 120), (100, 110), (110, 125)], 125, True),  # pulled again, cut otherwise
        ([(90, 120)], 120, True),
    ],
)
def test_notes_reach_without_a_gap(noted: list[tuple[int, int]], position: int, reached: bool) -> None:
    assert JoiningTable(since(), noted).reaches(position) is reached


def test_ranges_and_notes_are_found_again(tmp_path: Path) -> None:
    record = begun(tmp_path / "joining")
    record.done(7, 1, [copied(tmp_path, 1)])
    record.note(7, (100, 110), pa.table({"n0": [1, 2]}))
    record.note(7, (110, 120), pa.table({}))
    record.note(7, (120, 130), pa.table({"n0": [2, 3], "xn0": [None, "x"]}))
    with (tmp_path / "joining" / "ranges.jsonl").open("a") as file:
        file.write('{"table": 7, "noted": [130, 1')  # torn by a crash
    found = JoiningRecord(tmp_path / "joining")
    assert found.joining[7].since == since()
    assert found.joining[7].reaches(130)
    assert not found.joining[7].reaches(140)
    assert found.tables[7].whole(tmp_path).keys() == {1}
    assert found.complete == set()
    keys = found.changed(7)
    assert keys is not None
    assert sorted(python_values(keys["n0"])) == [1, 2, 3]  # each once, wherever exact texts were needed
    found.done(7, 0, [copied(tmp_path, 0)])
    assert JoiningRecord(tmp_path / "joining").complete == {7}


def test_a_file_that_is_not_what_it_was_is_not_taken(tmp_path: Path) -> None:
    record = begun(tmp_path / "joining")
    file = copied(tmp_path, 0)
    record.done(7, 0, [file])
    file.path.write_bytes(b"row")
    assert record.tables[7].whole(tmp_path) == {}
    file.path.unlink()
    assert record.tables[7].whole(tmp_path) == {}


def test_what_no_key_names_or_is_gone_is_known(tmp_path: Path) -> None:
    record = begun(tmp_path / "joining")
    record.note(7, (100, 110), pa.table({"n0": [1]}))
    (next((tmp_path / "joining").glob("*.parquet"))).unlink()
    assert record.changed(7) is None
    record = begun(tmp_path / "joining")
    record.note(7, (100, 110), None)
    assert record.joining[7].lost
    assert record.changed(7) is None


def test_begun_anew_and_left(tmp_path: Path) -> None:
    """Nothing that was told of a table before it began anew holds; the last one takes the folder along."""
    folder = tmp_path / "joining"
    record = begun(folder)
    record.done(7, 0, [copied(tmp_path, 0)])
    record.note(7, (100, 110), None)
    begun(folder, 8)
    record = begun(folder)
    assert (record.joining[7].noted, record.joining[7].lost, record.tables[7].files) == ([], False, {})
    record.forget_table(7)
    assert record.joining.keys() == record.tables.keys() == {8}
    record.forget_table(8)
    assert not folder.exists()


def test_a_table_in_one_go_leaves_no_line(tmp_path: Path) -> None:
    record = JoiningRecord(tmp_path / "joining")
    record.unrecorded = {7}
    record.begin(7, "f", "", PARTS)
    record.done(7, 0, [copied(tmp_path, 0)])
    assert not (tmp_path / "joining").exists()
