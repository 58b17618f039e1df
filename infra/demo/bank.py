"""The demo's source: pgbench's bank, and the invariant of TPC-B.

Every transaction of pgbench adds an amount to an account, a teller and a branch, and writes it to the
history.  So the four sums are equal at every position of the source, and are not equal within a transaction.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
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
    """A consistency point of the lake with the four sums at this point.

    ``lag_seconds``: from the oldest commit of its batch to its publication.
    """

    lsn: str
    kind: str
    transactions: int
    changes: int
    lag_seconds: float | None
    sums: dict[str, int]

    @property
    def holds(self) -> bool:
        """Return whether the four sums are equal."""
        return len(set(self.sums.values())) == 1


class Bank:
    """The bank's database in a running server."""

    def __init__(self, server: EmbeddedPostgres, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.running: subprocess.Popen[bytes] | None = None

    def fill(self, scale: int) -> None:
        """Create the database and load pgbench's tables; returns when all rows are there."""
        with psycopg.connect(self.server.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        log = self.folder / "pgbench-init.log"
        self._run(["--initialize", "--quiet", f"--scale={scale}"], log)
        self._finish(log)

    def write(self, transactions: int, rate: float, report_done: Callable[[int], None]) -> None:
        """Let pgbench write with a limited rate; returns after the last commit.

        Args:
            transactions: how many in total.
            rate: transactions per second.
            report_done: called about once a second with the number of finished transactions.
        """
        log = self.folder / "pgbench.log"
        per_client = -(-transactions // CLIENTS)
        self._run(
            [
                *("--no-vacuum", "--progress=1", f"--client={CLIENTS}", "--jobs=1"),
                *(f"--transactions={per_client}", f"--rate={rate:g}"),
            ],
            log,
        )
        while self.running is not None and self.running.poll() is None:
            report_done(_transactions_done(log))
            time.sleep(0.5)
        self._finish(log)

    def command(self) -> str:
        """Return a shell command that writes more transactions; it reads the password from a file."""
        variables = self.server.client_environment(DATABASE)
        server = f"-h 127.0.0.1 -p {variables['PGPORT']} -U {variables['PGUSER']}"
        options = f"-n {server} -c {CLIENTS} -t 1000 {DATABASE}"
        return f"PGPASSFILE={variables['PGPASSFILE']} {self.server.program('pgbench')} {options}"

    def stop(self) -> None:
        """Stop pgbench, if it is running."""
        if self.running is not None and self.running.poll() is None:
            process.end_group(self.running.pid)

    def position(self) -> int:
        """Return a position after all commits so far."""
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
            raise SetupError("pgbench failed", where=str(log), way_out=f"its log ends with:\n{end}")
        self.running = None


def transactions_of(log: Path) -> int:
    """Return how many transactions a finished pgbench has processed, from its log."""
    match = _PROCESSED.search(log.read_bytes())
    return int(match[1]) if match else 0


def points(lake: LakeSettings, changelog: Path) -> Iterator[Point]:
    """Yield every consistency point of the lake, oldest first, with the four sums.

    Args:
        changelog: the folder of the batches, which say when their oldest transaction was committed.
    """
    from slotlake.decoder.lsn import parse_lsn
    from slotlake.spark.read.point import ReadPoint

    sums_by_snapshot: dict[tuple[str, int], int] = {}
    for row in ReadPoint.latest(lake).commits():
        read_point = ReadPoint.at(lake, parse_lsn(row["lsn"]))
        sums = {table: _sum(read_point, table, column, sums_by_snapshot) for table, column in SUMS.items()}
        yield Point(
            lsn=row["lsn"],
            kind=row["kind"],
            transactions=row["transactions"],
            changes=row["changes"],
            lag_seconds=_lag_seconds(row, changelog),
            sums=sums,
        )


def _sum(read_point: Any, table: str, column: str, sums_by_snapshot: dict[tuple[str, int], int]) -> int:
    """Return the sum of a column at a read point; each snapshot of a table is read once."""
    import pyarrow.compute as pc

    key = (table, read_point.snapshot_id(table))
    if key not in sums_by_snapshot:
        sums_by_snapshot[key] = sum(
            pc.sum(batch.column(0)).as_py() or 0 for batch in read_point.arrow_batches(table, [column])
        )
    return sums_by_snapshot[key]


def _lag_seconds(row: dict[str, Any], changelog: Path) -> float | None:
    """Return the seconds from the oldest commit of a batch to its publication."""
    from slotlake.decoder.changelog.batches import Batch

    if not row["transactions"] or row["kind"] != "batch":
        return None
    oldest = Batch.open(changelog / row["batch"]).manifest["first_commit_time"]
    return float((row["published_at"] - datetime.fromisoformat(oldest)).total_seconds())


def _transactions_done(log: Path) -> int:
    """Return the number of transactions so far, from pgbench's line of each second."""
    total = previous = 0.0
    for moment, rate in _PROGRESS.findall(log.read_bytes()):
        total += (float(moment) - previous) * float(rate)
        previous = float(moment)
    return round(total)
