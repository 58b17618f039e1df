"""``./slotlake test --long``: the long form of all tests that have one, a file at a time.

What is done is noted after each file, so a run that was ended goes on where it stopped.  The results stand in
CONTRIBUTING.md, in a table that this module writes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slotlake.infra.launch.folders import CHECKOUT

_HAS_ONE = re.compile(r"SLOTLAKE_TEST_LONG|\bLONG\b")
_HEAD = "| Tests, in their long form | When | Result |\n| --- | --- | --- |\n"
_USAGE = """usage: ./slotlake test --long [--again] [--shard K/N] [PATH ...]

Runs each file of tests that has a long form (or those under PATH), one after another, with
SLOTLAKE_TEST_LONG=1. A run that was ended goes on where it stopped; --again begins a new one.
--shard 2/8 takes the second eighth."""

Results = dict[str, tuple[str, str]]  # file → (day, pytest's closing words)


def run(python: Path, variables: Mapping[str, str], home: Path, arguments: Sequence[str]) -> int:
    """Run what is left of the long form; return 1 if a file failed.

    Args:
        variables: the environment variables of the tests.
        home: the cache folder, which has the notes.
        arguments: of the command, after ``--long``.
    """
    if set(arguments) & {"-h", "--help"}:
        print(_USAGE)
        return 0
    try:
        again, shard, of, paths = _read(arguments)
    except ValueError as error:
        print(f"slotlake: {error}\n{_USAGE}", file=sys.stderr)
        return 2
    notes = home / f"long_form_{shard}_of_{of}.json"
    if again:
        notes.unlink(missing_ok=True)
    done: Results = {path: (day, words) for path, (day, words) in _noted(notes).items()}
    wanted = files(CHECKOUT, paths)[shard - 1 :: of]
    variables = {**variables, "SLOTLAKE_TEST_LONG": "1"}
    for number, path in enumerate(wanted, 1):
        if path not in done:
            done[path] = (time.strftime("%Y-%m-%d"), _outcome(python, variables, path))
            notes.parent.mkdir(parents=True, exist_ok=True)
            notes.write_text(json.dumps(done))
        print(f"{number:>4} of {len(wanted)}  {path}: {done[path][1]}", flush=True)
    page = CHECKOUT / "CONTRIBUTING.md"
    page.write_text(with_results(page.read_text(), {path: done[path] for path in wanted}))
    notes.unlink(missing_ok=True)
    failed = [path for path in wanted if not passed(done[path][1])]
    print(f"long form: {len(wanted) - len(failed)} files passed, {len(failed)} failed")
    return 1 if failed else 0


def files(root: Path, under: Iterable[str] = ()) -> list[str]:
    """The files of tests that have a long form, by their paths from the checkout."""
    folders = [root / path for path in under] or [root / "tests"]
    paths = {
        path for folder in folders for path in ([folder] if folder.is_file() else folder.rglob("test_*.py"))
    }
    return sorted(str(path.relative_to(root)) for path in paths if _HAS_ONE.search(path.read_text()))


def passed(outcome: str) -> bool:
    """Whether pytest's closing words tell of no failure."""
    return not re.search(r"fail|error|ended", outcome)


def with_results(page: str, results: Results) -> str:
    """CONTRIBUTING.md with new results in its table; files that are gone leave it.

    Raises:
        ValueError: the page has no such table.
    """
    before, head, rest = page.partition(_HEAD)
    if not head:
        raise ValueError("CONTRIBUTING.md has no table of the long form")
    rows = (re.match(r"(?:\|.*\n)*", rest) or [""])[0]
    after = rest[len(rows) :].lstrip("\n")
    old = dict(re.findall(r"^\| `([^`]+)` (.*)$", rows, re.MULTILINE))
    new = {path: f"| {day} | {words} |" for path, (day, words) in results.items()}
    shown = {path: row for path, row in {**old, **new}.items() if path in new or (CHECKOUT / path).is_file()}
    lines = "\n".join(f"| `{path}` {row}" for path, row in sorted(shown.items()))
    return f"{before}{head}{lines}\n\n{after}"


def _read(arguments: Sequence[str]) -> tuple[bool, int, int, list[str]]:
    """(again, shard, of how many, paths)."""
    left, again, shard, of, paths = list(arguments), False, 1, 1, []
    while left:
        word = left.pop(0)
        if word == "--again":
            again = True
        elif word == "--shard":
            part = re.fullmatch(r"(\d+)/(\d+)", left.pop(0) if left else "")
            if not part or not 1 <= (shard := int(part[1])) <= (of := int(part[2])):
                raise ValueError("--shard takes K/N, such as 2/8")
        elif word.startswith("-"):
            raise ValueError(f"test --long does not know {word}")
        elif not (CHECKOUT / word).exists():
            raise ValueError(f"there is no {word}")
        else:
            paths.append(word)
    return again, shard, of, paths


def _noted(notes: Path) -> dict[str, list[str]]:
    try:
        noted: dict[str, list[str]] = json.loads(notes.read_text())
    except (OSError, ValueError):
        return {}
    return noted


def _outcome(python: Path, variables: Mapping[str, str], path: str) -> str:
    """Pytest's closing words of a file, without its rules of '='; its output is shown if something failed."""
    command = [str(python), "-P", "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", path]
    ended = subprocess.run(
        command, cwd=CHECKOUT, env=dict(variables), capture_output=True, text=True, check=False
    )
    last = ended.stdout.strip().rpartition("\n")[2].strip("= ")
    words = (
        last if re.search(r"\d+ (passed|failed|skipped|error)", last) else f"ended with {ended.returncode}"
    )
    if not passed(words) or ended.returncode not in (0, 5):
        print(ended.stdout[-20_000:], ended.stderr[-5_000:], flush=True)
    return re.sub(r", \d+ (deselected|warnings?)", "", words)
