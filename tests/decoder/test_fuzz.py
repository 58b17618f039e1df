"""The corpus of damaged streams, and as many new ones as a short time allows.

``SLOTLAKE_FUZZ_SECONDS`` makes the run longer; ``python -m tests.decoder.fuzz`` runs by number.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import seed_of_the_run
from tests.decoder.fuzz import SHARES, run
from tests.decoder.fuzz_cases import CORPUS, read_case
from tests.decoder.fuzz_judges import judge
from tests.decoder.fuzz_report import reason_of

CASES = sorted(CORPUS.glob("*.hex"))


@pytest.mark.fast
@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_a_damaged_stream_is_refused_for_the_same_reason_by_all(path: Path) -> None:
    options, stream, note = read_case(path)
    assert reason_of(judge(options, stream)) == reason_of(note)


@pytest.mark.slow
def test_new_damage_brings_nothing_but_protocol_errors(tmp_path: Path) -> None:
    seed = seed_of_the_run()
    seconds = float(os.environ.get("SLOTLAKE_FUZZ_SECONDS", "10"))
    report = run(seed, 1 << 60, seconds, tmp_path)
    print(f"SLOTLAKE_SEED={seed}: {report.line()}, {len(report.reasons)} reasons")
    assert report.finds == [], [path.read_text() for path in report.finds]
    assert report.total > 500
    assert set(report.streams) == set(SHARES)
    assert all(report.taken.values())
    assert len(report.reasons) > 20
