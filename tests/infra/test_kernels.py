"""The compiled loops: none is compiled within a batch, and each is kept by what it was made from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slotlake.decoder.compiled import cache as kernel_cache
from tests.conftest import ROOT

pytestmark = [pytest.mark.seconds]

# What calls the loops with what real data gives them: streams of real servers, folds, hashes.
CALLERS = (
    "tests/decoder/test_vectors.py",
    "tests/decoder/test_columnar_values.py",
    "tests/decoder/test_binary_texts.py",
    "tests/decoder/test_copy_types.py",
    "tests/spark/test_fold.py",
    "tests/spark/test_fold_history.py",
    "tests/expectations/test_hashing.py",
)
SCRIPT = """
import json, sys, pytest
assert pytest.main(["-q", "-m", "fast", "-p", "no:cacheprovider", "-n0", *sys.argv[1:]]) == 0
from slotlake.infra.kernels import SIGNATURES, compiled_for
known = json.loads(SIGNATURES.read_text())
new = {name: s for name, found in compiled_for().items() if (s := set(found) - set(known.get(name, ())))}
assert not new, f"not compiled beforehand; run: python -m tests.kernel_signatures: {new}"
"""


def test_every_loop_that_is_called_is_compiled_beforehand() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, *CALLERS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def test_machine_code_is_kept_by_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for name, change in (("one", ""), ("a clone", ""), ("changed", "\n# changed")):
        shutil.copytree(
            ROOT / "decoder", tmp_path / name / "decoder", ignore=shutil.ignore_patterns("__pycache__")
        )
        words = tmp_path / name / "decoder" / "compiled" / "words.py"  # scan.py calls it
        words.write_text(words.read_text() + change)
        monkeypatch.setattr(kernel_cache, "_PROJECT", tmp_path / name)
        digests.append(kernel_cache.digest(tmp_path / name / "decoder" / "columnar" / "scan.py"))
    assert digests[0] == digests[1] != digests[2]
