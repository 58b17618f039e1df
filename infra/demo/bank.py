"""The demo's source: pgbench's bank, and the invariant that TPC-B gives it.

Every transaction of pgbench adds one amount to an account, a teller and a branch, and writes it to the
history.  So at any position of the source, and at no point between, the four sums are equal.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from slotlake.decoder.errors import SetupError
from slotlake.infra.local import process
from slotlake.infra.local.postgres import EmbeddedPostgres
from slotlake.spark.lake import LakeSettings

DATABASE = "bank"
CLIENTS = 4
SUMS = {
    "public.pgbench_accounts": "abalance",
    "public.pgbench_tellers": "tbalance",
    "public.pgbench_branches": "bbalance",
    "public.pgbench_history": "delta",
}
_PROGRESS = re.compile(rb"progress: ([0-9.]+) s, ([0-9.]+) tps")
_PROCESSED = re.compile(rb"actually processed: ([0-9]+)")


@dataclass(frozen=True)
class Point:
    """One consistency point of the lake, and the four sums there."""

    lsn: str
    kind: str
    transactions: int
    changes: int
    lag_seconds: float | None
    sums: dict[str, int]

    @property
    def holds(self) -> bool:
        """Are the four sums equal?"""
        return len(set(self.sums.values())) == 1


class Bank:
    """The database in a running server."""

    def __init__(self, server: EmbeddedPostgres, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.running: subprocess.Popen[bytes] | None = None

    def fill(self, scale: int) -> None:
        """Make the database and load pgbench's tables; blocks."""
        with psycopg.connect(self.server.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        log = self.folder / "pgbench-init.log"
        self._run(["--initialize", "--quiet", f"--scale={scale}"], log)
        self._finish(log)

    def write(self, transactions: int, rate: float, tell: Callable[[int], None]) -> None:
        """Let pgbench run, rate-limited; blocks until it has committed the last transaction.

        Args:
            tell: called about once a second with the number of transactions done.
        """
        log = self.folder / "pgbench.log"
        each = -(-transactions // CLIENTS)
        self._run(
            [
                *("--no-vacuum", "--progress=1", f"--client={CLIENTS}", "--jobs=1"),
                *(f"--transactions={each}", f"--rate={rate:g}"),
            ],
            log,
        )
        while self.running is not None and self.running.poll() is None:
            tell(_done(log))
            time.sleep(0.5)
        self._finish(log)

    def command(self) -> str:
        """A shell command that writes more; the password stays in its file."""
        known = self.server.client_environment(DATABASE)
        options = f"-n -h 127.0.0.1 -p {known['PGPORT']} -U {known['PGUSER']} -c {CLIENTS} -t 1000 {DATABASE}"
        return f"PGPASSFILE={known['PGPASSFILE']} {self.server.program('pgbench')} {options}"

    def stop(self) -> None:
        """End a pgbench that still runs."""
        if self.running is not None and self.running.poll() is None:
            process.end_group(self.running.pid)

    def position(self) -> int:
        """A position behind everything committed so far."""
        from slotlake.decoder.server.position import settled_position

        with psycopg.connect(self.server.dsn(DATABASE), autocommit=True) as connection:
            return settled_position(connection)

    def _run(self, options: list[str], log: Path) -> None:
        log.unlink(missing_ok=True)
        self.running = process.start(
            [self.server.program("pgbench"), *options],
            log,
            environment=self.server.client_environment(DATABASE),
            at_parents_end=signal.SIGTERM,
        )

    def _finish(self, log: Path) -> None:
        assert self.running is not None
        if self.running.wait() != 0:
            end = log.read_text(errors="replace").strip()[-800:]
            raise SetupError("pgbench failed", where=str(log), way_out=f"it says:\n{end}")
        self.running = None


def transactions_of(log: Path) -> int:
    """How many transactions a finished pgbench says it has done."""
    found = _PROCESSED.search(log.read_bytes())
    return int(found[1]) if found else 0


def points(lake: LakeSettings) -> Iterator[Point]:
    """Every consistency point of the lake, oldest first, with the four sums read there."""
    from slotlake.decoder.lsn import parse_lsn
    from slotlake.spark.read.point import ReadPoint

    known: dict[tuple[str, int], int] = {}
    for row in ReadPoint.latest(lake).commits():
        cut = ReadPoint.at(lake, parse_lsn(row["lsn"]))
        sums = {table: _sum(cut, table, column, known) for table, column in SUMS.items()}
        yield Point(
            lsn=row["lsn"],
            kind=row["kind"],
            transactions=row["transactions"],
            changes=row["changes"],
            lag_seconds=_lag_seconds(row),
            sums=sums,
        )


def _sum(cut: Any, table: str, column: str, known: dict[tuple[str, int], int]) -> int:
    """The sum of a column at a cut; read once per snapshot of the table."""
    import pyarrow.compute as pc

    key = (table, cut.snapshot_id(table))
    if key not in known:
        known[key] = sum(pc.sum(batch.column(0)).as_py() or 0 for batch in cut.arrow_batches(table, [column]))
    return known[key]


def _lag_seconds(row: dict[str, Any]) -> float | None:
    """From the commit of a batch's last transaction to the moment it can be queried."""
    if row["commit_time"] is None or not row["transactions"]:
        return None
    return float((row["published_at"] - row["commit_time"]).total_seconds())


def _done(log: Path) -> int:
    """Transactions so far, from what pgbench says each second."""
    total = previous = 0.0
    for moment, rate in _PROGRESS.findall(log.read_bytes()):
        total += (float(moment) - previous) * float(rate)
        previous = float(moment)
    return round(total)
