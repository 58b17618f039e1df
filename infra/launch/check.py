"""``./slotlake check``: format, lint, strict types, import rules and the fast tests, under a minute."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from infra.launch.folders import CHECKOUT


def steps(cache: Path) -> list[tuple[str, list[str]]]:
    """Each step's name and its arguments to the environment's Python; caches stay out of the checkout."""
    ruff = ["-m", "ruff"]
    ruff_cache = ["--cache-dir", str(cache / "ruff")]
    return [
        ("format", [*ruff, "format", "--check", *ruff_cache, "."]),
        ("lint", [*ruff, "check", *ruff_cache, "."]),
        (
            "imports",
            ["-P", "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"],
        ),
        ("types", ["-P", "-m", "mypy", "--cache-dir", str(cache / "mypy"), "--no-error-summary"]),
        ("fast tests", ["-P", "-m", "pytest", "-q", "-m", "fast", "-p", "no:cacheprovider", "--durations=3"]),
    ]


def run(python: Path, variables: Mapping[str, str], home: Path, arguments: Sequence[str]) -> int:
    """Run every step, show its name, time and, when it fails, what it says; 0 when all passed."""
    if arguments:
        print(f"slotlake: check takes no arguments, got {' '.join(arguments)}", file=sys.stderr)
        return 2
    started = time.monotonic()
    failed = [
        name for name, command in steps(home / "check") if not _step(name, [str(python), *command], variables)
    ]
    seconds = time.monotonic() - started
    verdict = f"failed: {', '.join(failed)}" if failed else "all passed"
    print(f"check {verdict} in {seconds:.0f} s", flush=True)
    return 1 if failed else 0


def _step(name: str, command: list[str], variables: Mapping[str, str]) -> bool:
    print(f"{name:<12}", end="", flush=True)
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        env=dict(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    passed = done.returncode == 0
    print(f"{'passed' if passed else 'FAILED'} in {time.monotonic() - started:.1f} s", flush=True)
    if not passed:
        print(done.stdout.rstrip(), flush=True)
    return passed
