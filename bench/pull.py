"""pull_vs_pg_recvlogical: a backlog to typed Parquet, against the same stream written to a file as it is.

A backlog is read through SQL (decoder/stream/bulk.py), and once more as a stream, which is what is left where
that cannot be.

Each run has a copy of the backlog's slot, so each decodes the same WAL from the same place.  What is
timed of ours is `decoder.stream.pull.pull` in a process that has pulled before (a warm worker); the same in a
process of its own, interpreter and compiled code loaded anew, stands beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from slotlake.bench.figures import PAIRS, Figure, rates
from slotlake.bench.workload import (
    DATABASE,
    PUBLICATION,
    Backlog,
    bench_folder,
    bench_server,
    make_backlog,
    rows_asked,
    runs_asked,
    slot_copy,
    source_of,
)
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.source import Streaming
from slotlake.infra.local.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from slotlake.infra.progress import Progressing

INSERTS = 500_000
STREAMING: Streaming = "parallel"
_DSN_VARIABLE = "SLOTLAKE_BENCH_DSN"


def pull_vs_pg_recvlogical(progress: Progressing) -> list[Figure]:
    """Over TCP and over the Unix socket, values in text and in binary; both sides ask for the same."""
    with bench_server() as server, bench_folder() as folder:
        progress("pull_vs_pg_recvlogical: making the backlog", 0)
        backlog = make_backlog(server, rows_asked(INSERTS))
        race = _Race(server, folder, backlog)
        race.warm_up()
        return [race.figure(way, progress) for way in _WAYS]


@dataclass(frozen=True)
class _Way:
    """How the stream is asked for."""

    unix_socket: bool
    binary: bool
    bulk: bool = True

    @property
    def text(self) -> str:
        way = "the Unix socket" if self.unix_socket else "TCP"
        how = "" if self.bulk else " streamed (source.bulk: false),"
        return f"{way}, values in {'binary' if self.binary else 'text'},{how}"


_WAYS = [_Way(unix_socket, binary) for binary in (False, True) for unix_socket in (False, True)]
_WAYS += [_Way(unix_socket, binary=False, bulk=False) for unix_socket in (False, True)]


class _Race:
    def __init__(self, server: EmbeddedPostgres, folder: Path, backlog: Backlog) -> None:
        self._server, self._folder, self._backlog = server, folder, backlog
        self._sizes: dict[bool, set[int]] = {False: set(), True: set()}

    def warm_up(self) -> None:
        """Compiled code in, WAL in the page cache."""
        for binary in (False, True):
            self._pull(_Way(False, binary))
        self._pull(_Way(False, False, bulk=False))

    def figure(self, way: _Way, progress: Progressing) -> Figure:
        warm, alone = [], []
        pairs = runs_asked(PAIRS)
        for i in range(pairs):
            progress(f"pull_vs_pg_recvlogical: over {way.text} pair", i + 1, pairs)
            warm.append((self._pull(way), self._pg_recvlogical(way)))
            alone.append(self._pull_alone(way))
        ours, theirs = rates(self._backlog.changes, warm)
        return Figure(
            what=f"pull of {self._backlog.changes:,} changes over {way.text} to typed Parquet",
            peer="pg_recvlogical to a file",
            unit="changes/s",
            ours=ours,
            theirs=theirs,
            wanted=2.0 if way.bulk else None,
            parts={
                "s, in a warm process": median(mine for mine, _ in warm),
                "s, in a process of its own": median(alone),
                "s, pg_recvlogical": median(other for _, other in warm),
            },
        )

    def _pull(self, way: _Way) -> float:
        with slot_copy(self._server, "bench_ours") as slot:
            folder, backlog = self._folder / "changelog", self._backlog
            return pulled_seconds(self._dsn(way), slot, folder, backlog, binary=way.binary, bulk=way.bulk)

    def _pull_alone(self, way: _Way) -> float:
        with slot_copy(self._server, "bench_alone") as slot:
            backlog = self._backlog
            numbers = (backlog.start, backlog.until, backlog.changes, int(way.binary), int(way.bulk))
            work = [slot, str(self._folder / "alone"), *map(str, numbers)]
            started = time.monotonic()
            subprocess.run(
                [sys.executable, "-m", __name__, json.dumps(work)],
                env={**os.environ, _DSN_VARIABLE: self._dsn(way)},
                cwd=Path(__file__).resolve().parents[1],
                check=True,
            )
            return time.monotonic() - started

    def _dsn(self, way: _Way) -> str:
        return self._server.dsn(DATABASE, unix_socket=way.unix_socket)

    def _pg_recvlogical(self, way: _Way) -> float:
        written = self._folder / "pg_recvlogical.out"
        environment = self._server.client_environment(DATABASE)
        if way.unix_socket:
            environment["PGHOST"] = str(self._server.socket_folder)
        with slot_copy(self._server, "bench_theirs") as slot:
            command = [
                self._server.program("pg_recvlogical"), "--start", "--no-loop", "--slot", slot,
                "--dbname", DATABASE, "--file", str(written), "--endpos", format_lsn(self._backlog.until),
                "--option", "proto_version=4", "--option", f"publication_names={PUBLICATION}",
                "--option", f"streaming={STREAMING}", "--option", f"binary={str(way.binary).lower()}",
            ]  # fmt: skip
            started = time.monotonic()
            _run(command, environment)
            seconds = time.monotonic() - started
        self._check(written, self._sizes[way.binary])
        return seconds

    def _check(self, written: Path, sizes: set[int]) -> None:
        """A stream that ended early would be a fine figure."""
        sizes.add(written.stat().st_size)
        written.unlink()
        if max(sizes) > 1.01 * min(sizes) or min(sizes) < 30 * self._backlog.changes:
            raise SlotlakeError("pg_recvlogical did not write the whole backlog", where=str(sorted(sizes)))


def _run(command: list[str], environment: dict[str, str]) -> None:
    running = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        _, errors = running.communicate()
    finally:
        if running.poll() is None:
            running.kill()
            running.wait()
    if running.returncode != 0:
        raise SlotlakeError(f"{Path(command[0]).name} failed", where=errors.strip()[-500:])


def pulled_seconds(
    dsn: str, slot: str, changelog: Path, backlog: Backlog, *, binary: bool, bulk: bool
) -> float:
    """Return how long one pull of the backlog takes; the batch is checked and removed.

    Args:
        backlog: positions and counts of what is pulled.
        binary: ask for values in binary.
        bulk: read through SQL.

    Raises:
        SlotlakeError: the batch does not hold the backlog.
    """
    from slotlake.decoder.stream.pull import pull

    source = replace(source_of(dsn, slot), streaming=STREAMING, binary=binary, bulk=bulk)
    started = time.monotonic()
    batch = pull(source, "bench", changelog, start=backlog.start, until=backlog.until)
    seconds = time.monotonic() - started
    if (batch.changes, batch.end_lsn) != (backlog.changes, backlog.until):
        raise SlotlakeError(
            f"{batch.changes} changes were pulled, not {backlog.changes}", where=str(batch.path)
        )
    shutil.rmtree(changelog)
    return seconds


def _alone(work: str) -> None:
    slot, changelog, *numbers = json.loads(work)
    start, until, changes, binary, bulk = map(int, numbers)
    backlog = Backlog(start, until, changes, 0)
    dsn = os.environ[_DSN_VARIABLE]
    pulled_seconds(dsn, slot, Path(changelog), backlog, binary=bool(binary), bulk=bool(bulk))


if __name__ == "__main__":
    _alone(sys.argv[1])
