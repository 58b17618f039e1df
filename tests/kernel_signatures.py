"""Writes down for which types the compiled loops are called: ``python -m tests.kernel_signatures``.

Runs the fast tests of what is compiled, which call every loop with what real data gives it, and writes
``infra/kernels.json``.  To be run after a loop was added or got other arguments.
"""

from __future__ import annotations

import json
import sys

import pytest

from slotlake.infra.kernels import SIGNATURES, compiled_for

FOLDERS = ("tests/decoder", "tests/spark", "tests/expectations")


def main() -> int:
    """Run the tests, then write the file; the exit code of pytest."""
    code = pytest.main(["-q", "-m", "fast", "-p", "no:cacheprovider", *FOLDERS])
    if code == 0:
        SIGNATURES.write_text(json.dumps(compiled_for(), indent=1) + "\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
