"""first_pipeline_s: docs/tutorial.md as it stands, typed on a server of its own until the lake is proven.

Invariant: every block of the page is run, in its order, and one that fails ends the run.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from slotlake.bench.figures import Figure
from slotlake.bench.workload import DATABASE, bench_server
from slotlake.decoder.errors import SlotlakeError

if TYPE_CHECKING:
    from slotlake.infra.progress import Progressing

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
SECONDS_MAX = 600.0
_PROVEN = "3. The lake"  # this section ends with `verify`
_SECONDS_MAX_OF_A_BLOCK = 300
_PARTS = re.compile(
    r"^## (?P<section>[^\n]+)$|^```(?P<kind>sh|sql|python|text)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """What the page says to type (`sql`, `python`, one command of `sh`), or an answer it shows (`text`)."""

    section: str
    kind: str
    text: str


def blocks() -> list[Block]:
    """The page's blocks in their order, without the line that names a database."""
    section, read = "", []
    for part in _PARTS.finditer(PAGE.read_text()):
        section = part["section"] or section
        if not part["kind"] or part["text"].startswith("export SHOP_DSN="):
            continue
        texts = re.split(r"\n(?! )", part["text"].strip()) if part["kind"] == "sh" else [part["text"]]
        read += [Block(section, part["kind"], text) for text in texts]
    return read


def environment(folder: Path, dsn: str) -> dict[str, str]:
    """The variables for the page's commands; makes the command `slotlake` in the folder where they run."""
    launcher = folder / "slotlake"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m slotlake "$@"\n')
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
    root = PAGE.parents[1]
    checkout = {"PYTHONPATH": f"{root / 'src'}:{root}"} if (root / "src").is_dir() else {}
    return {**os.environ, "SHOP_DSN": dsn, "COLUMNS": "100"} | checkout


def typed(block: Block, folder: Path, variables: Mapping[str, str]) -> str:
    """Type a block, and return what its commands print, errors too; of SQL nothing.

    Raises:
        SlotlakeError: it failed.
    """
    if block.kind == "sql":
        with psycopg.connect(variables["SHOP_DSN"], autocommit=True) as connection:
            connection.execute(block.text.encode())
        return ""
    program = ["bash", "-ec"] if block.kind == "sh" else [sys.executable, "-c"]
    done = subprocess.run(
        [*program, block.text],
        env=dict(variables),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS_MAX_OF_A_BLOCK,
        check=False,
    )
    if done.returncode != 0:
        raise SlotlakeError(f"the tutorial's {block.text.strip()!r} failed: {done.stdout[-2000:]}")
    return done.stdout


def first_pipeline_s(progress: Progressing) -> list[Figure]:
    """Seconds of the page's commands: until `verify` has proven the first pipeline, and of the whole page."""
    steps = [block for block in blocks() if block.kind != "text"]
    seconds: dict[str, float] = {}
    with bench_server() as server, tempfile.TemporaryDirectory() as place:
        variables = environment(Path(place), server.dsn(DATABASE))
        for number, block in enumerate(steps):
            progress(f"first_pipeline_s: {block.section}", number + 1, len(steps))
            began = time.monotonic()
            typed(block, Path(place), variables)
            seconds[block.section] = seconds.get(block.section, 0.0) + time.monotonic() - began
    sections = list(seconds)
    first = sum(seconds[section] for section in sections[: sections.index(_PROVEN) + 1])
    return [
        Figure(
            what="the tutorial's commands until the first pipeline is proven equal, each in its own process",
            peer="limit",
            unit="s",
            ours=(first,),
            theirs=(SECONDS_MAX,),
            better="less",
            wanted=1.0,
            parts={"s, the whole page": sum(seconds.values())}
            | {f"s, {section}": taken for section, taken in seconds.items()},
        )
    ]
