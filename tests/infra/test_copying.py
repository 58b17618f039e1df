"""What a copy keeps on disk and tells of itself: torn lines, damaged files, states, rates, time left."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.copy.files import CopiedFile
from slotlake.decoder.copy.parts import Part
from slotlake.decoder.copy.table import CopyJob
from slotlake.infra.copy.record import CopyRecord
from slotlake.infra.copy.states import CopyStates, TableProgress, read, unmark_process
from slotlake.infra.progress import CopyStep, progress_lines

PARTS = [Part(0, 'ONLY "public"."t"', None, 10, 100, 80_000), Part(1, 'ONLY "public"."t"', 10, None, 5, 800)]


def file(folder: Path, name: str, content: bytes) -> CopiedFile:
    (folder / name).write_bytes(content)
    return CopiedFile(folder / name, 3, len(content), ("d",), 1 + len(content))


def test_what_is_recorded_is_found_again(tmp_path: Path) -> None:
    record = CopyRecord(tmp_path / "copying")
    assert record.tables == {}
    record.begin(7, "mark", "{}", PARTS)
    assert not record.started
    made = [file(tmp_path, "copy-0.parquet", b"abc"), file(tmp_path, "copy-1.parquet", b"")]
    record.done(7, 1, made)
    [found] = CopyRecord(tmp_path / "copying").tables.values()
    assert (found.fingerprint, found.partitions, found.parts) == ("mark", "{}", tuple(PARTS))
    assert found.whole(tmp_path) == {1: made}
    assert found.names == {"copy-0.parquet", "copy-1.parquet"}
    record.extend(7, '{"9": 1}', [Part(2, "ONLY x", None, None, 0, 0)])
    record.done(7, 0, [])
    found = record.tables[7]
    assert (len(found.parts), found.partitions, sorted(found.files)) == (3, '{"9": 1}', [0, 1])
    record.begin(7, "other", "", PARTS[:1])
    assert record.tables[7].files == {}
    record.forget()
    assert record.tables == {}


def test_a_torn_line_is_no_line(tmp_path: Path) -> None:
    record = CopyRecord(tmp_path)
    record.begin(7, "mark", "", PARTS)
    record.done(7, 0, [])
    whole = (tmp_path / "ranges.jsonl").read_bytes()
    for cut in range(whole.index(b"\n") + 1, len(whole)):
        (tmp_path / "ranges.jsonl").write_bytes(whole[:cut])
        assert CopyRecord(tmp_path).tables[7].files == {}
    again = CopyRecord(tmp_path)
    again.done(7, 1, [])
    assert list(again.tables[7].files) == [1]


def test_a_damaged_or_missing_file_is_not_whole(tmp_path: Path) -> None:
    record = CopyRecord(tmp_path / "copying")
    record.begin(7, "mark", "", PARTS)
    record.done(7, 0, [file(tmp_path, "a", b"one")])
    record.done(7, 1, [file(tmp_path, "b", b"two"), file(tmp_path, "c", b"three")])
    (tmp_path / "a").write_bytes(b"0ne")
    assert list(record.tables[7].whole(tmp_path)) == [1]
    (tmp_path / "c").unlink()
    assert record.tables[7].whole(tmp_path) == {}


def test_states_as_another_process_reads_them(tmp_path: Path) -> None:
    told: list[tuple[CopyStep, int, int | None]] = []
    states = CopyStates(tmp_path, 0x1_0000_0010, lambda *of: told.append(of))
    states.expect(TableProgress("public.t", rows_estimated=100, ranges=2))
    states.move("public.t", "copied")
    found = read(tmp_path)
    assert found is not None
    assert (found["lsn"], found["tables"][0]["state"]) == ("1/10", "copied")
    assert found["process"] is not None
    assert [step.state for step, _, _ in told] == ["copied"]
    unmark_process(tmp_path)
    found = read(tmp_path)
    assert found is not None
    assert found["process"] is None
    assert json.loads((tmp_path / "copy.json").read_text())["tables"]
    states.forget()
    assert read(tmp_path) is None


def test_the_first_chunk_took_time(tmp_path: Path) -> None:
    rates: list[float] = []
    states = CopyStates(tmp_path, 1, lambda step, *of: rates.append(step.rate))
    states.expect(TableProgress('public."T t"', rows_estimated=2000))
    table = SourceTable(7, "public", "T t", "r", "d", (), (), (), None, updates=True, deletes=True)
    time.sleep(0.05)
    nowhere: Any = None
    states.count_rows(CopyJob(table, nowhere, PARTS[0], "copy"), 1000, 8)
    assert 0 < rates[0] < 20_000


def test_lines_of_a_log() -> None:
    said: list[str] = []
    progress = progress_lines(said.append, every_seconds=1000)
    for state, rows in (("copying", 1_000_000), ("copying", 1_500_000), ("copied", 4_000_000)):
        progress(CopyStep.of("public.t", state, 84_100_000, rows, 10.0), rows, 4_000_000)
    progress("publish", 0)
    progress("publish", 0)
    assert said == [
        "copy public.t: 1,000,000 of about 4,000,000 rows, copying, 84.1 MB, 100,000 rows/s, 0:30 left",
        "copy public.t: 4,000,000 rows, copied, 84.1 MB",
        "publish",
    ]
