"""Kills, over and over: what is published stays one state of the source, and nothing is lost or left behind.

    PYTHONPATH=src python -m tests.proof.chaos --kills 10000 --record kills

A round has a source, a lake, and two writers of its own, and some hundred strikes: SIGKILL to a step at any
moment, a step that is stopped while another one works, PostgreSQL, the catalog or the object store that
ends at once, a network to the source that is slow, silent or cut, a disk without room.  A reader in another
process reads cut after cut (`workload`).  A round ends with a sync, `verify`, `maintain`, a comparison with
the source, and a look for files that nothing leads to.  Steps are forked from a process that has imported
them, so that one begins within milliseconds; it has no threads of its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from slotlake import Pipeline
from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.local.java import find_java
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.infra.local.postgres import EmbeddedPostgres, temporary_postgres
from tests.e2e.readers import s3_secret
from tests.proof import workload
from tests.proof.network import Network, network

KILLS_PER_ROUND: Final = 100
_REFUSED, _DEFECT = 3, 4
# Steps that begin a Java, and how long one takes before it was measured.
_WITH_JAVA: Final = ("maintain", "verify", "backfill")
_JAVA_SECONDS: Final = 12.0
_READER_SECONDS: Final = 5.0  # a query that met a server's end may be told so later
_DISK_BYTES: Final = 1 << 30
_FILE: Final = """
name: chaos
source: {{dsn: "{dsn}", publications: [chaos], slot: chaos}}
lake: {{catalog: lake, uri: "{uri}", warehouse: "{warehouse}", namespace: chaos{storage}}}
maintenance: {{unused_minutes: 1}}
"""
# What a round is built on, in turns.
KINDS: Final = ("folder", "bucket")
# What is struck, and how often: a step of the pipeline, or a server while a step works.
STRIKES: Final = (
    *["sync"] * 20, *["tasks"] * 10, *["frozen"] * 4, *["source"] * 4, *["catalog"] * 2, *["store"] * 2,
    *["network"] * 4, *["disk"] * 4, "maintain", "verify", "backfill",
)  # fmt: skip


@dataclass
class Child:
    """A forked process that does one thing, and says in a file how it ended."""

    pid: int
    report: Path

    @classmethod
    def fork(cls, work: Callable[[], None], report: Path) -> Child:
        """Begin; what it prints goes beside the report."""
        report.unlink(missing_ok=True)
        pid = os.fork()
        if pid:
            return cls(pid, report)
        code = 0
        try:
            output = os.open(report.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            work()
        except SlotlakeError as error:
            code = _REFUSED
            report.write_text(str(error))
        except BaseException:  # noqa: BLE001  (all of it is told)
            code = _DEFECT
            report.write_text(traceback.format_exc())
        finally:
            os._exit(code)

    def signal(self, number: int) -> None:
        """Send a signal, if it is there still."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self, seconds: float = 300.0) -> int:
        """Wait for it; return its exit code, or minus the signal that ended it."""
        last = time.monotonic() + seconds
        while time.monotonic() < last:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        self.signal(signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.report.write_text(f"it had not ended after {seconds:g} s")
        return _DEFECT

    def is_alive(self) -> bool:
        """Whether it works still; it is not waited for."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def said(self) -> str:
        """Why it ended, if not well."""
        return self.report.read_text() if self.report.exists() else ""


@dataclass
class Disk:
    """Where a round's lake and notes are.

    Attributes:
        own: it is a file system of its own, in memory, and can be filled; for that one must be root.
    """

    folder: Path
    own: bool

    @classmethod
    @contextmanager
    def mounted(cls, folder: Path) -> Iterator[Disk]:
        """Make it, and take it away at the end."""
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(folder)]
        own = os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0
        try:
            yield cls(folder, own)
        finally:
            if own:
                subprocess.run(["umount", "--lazy", str(folder)], check=False)

    @contextmanager
    def without_room(self, left: int) -> Iterator[None]:
        """Fill it but for so many bytes."""
        filler = self.folder / "filler"
        free = os.statvfs(self.folder)
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(free.f_bavail * free.f_frsize - left, 1))
        try:
            yield
        finally:
            filler.unlink()


@dataclass
class Round:
    """One source and one lake under strikes.

    Attributes:
        torn: the reader is broken on purpose.
        kills: strike → how often a step, or a server under one, was met while it worked.
        missed: how often the step had ended before it was to be struck.
        away: when the catalog or the store was not there, from and until, on the clock of readings.
        wrong: what was found.
    """

    folder: Path
    kind: str
    chance: random.Random
    source: EmbeddedPostgres
    network: Network
    disk: Disk
    catalog: EmbeddedPostgres | None = None
    store: LocalObjectStore | None = None
    torn: bool = False
    kills: Counter[str] = field(default_factory=Counter)
    missed: int = 0
    away: list[tuple[float, float]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    _children: list[Child] = field(default_factory=list)

    def prepare(self) -> None:
        """Make the tables, the pipeline and its first copy."""
        with psycopg.connect(self.source.dsn(), autocommit=True) as connection:
            connection.execute(self.lay().encode())
        self._must("init", lambda pipeline: pipeline.init())
        self._must("sync", lambda pipeline: pipeline.sync())

    def lay(self) -> str:
        """Write the pipeline file; return the SQL that makes the tables and their publication."""
        uri, storage = f"sqlite:///{self.disk.folder}/lake.db", ""
        warehouse = f"{self.disk.folder}/warehouse"
        if self.catalog is not None and self.store is not None:
            uri, warehouse = self.catalog.url(), f"{self.store.warehouse}/{self.folder.name}"
            storage = f", storage: {json.dumps(self.store.storage)}"
        dsn = self.source.dsn().replace(f"port={self.source.port}", f"port={self.network.port}")
        text = _FILE.format(dsn=dsn, uri=uri, warehouse=warehouse, storage=storage)
        self.file = self.disk.folder / "chaos.yaml"
        self.file.write_text(text)
        self._uri = uri
        return f"{workload.SCHEMA}CREATE PUBLICATION chaos FOR TABLE {', '.join(workload.TABLES)}"

    def writers(self) -> None:
        """Begin two writers and a reader; they go on until :meth:`stop`."""
        for number in range(2):
            seed = self.chance.getrandbits(32)
            work = lambda n=number, s=seed: workload.write(self.source.dsn(), self._log(n), s, 0.05)  # noqa: E731
            self._children.append(Child.fork(work, self.folder / f"writer{number}.txt"))
        self._children.append(Child.fork(self._read, self.folder / "reader.txt"))

    def stop(self) -> None:
        """End writers and reader."""
        for child in self._children:
            child.signal(signal.SIGKILL)
            child.end()
        self._children.clear()

    def _log(self, number: int) -> Path:
        return self.folder / f"writes{number}.jsonl"

    def _reader(self) -> workload.LakeReader:
        secret = "" if self.store is None else s3_secret(self.store.storage)
        return workload.LakeReader(self._uri.removeprefix("sqlite:///"), "chaos", secret, self.torn)

    def _read(self) -> None:
        """Read cuts until the process ends; an error is noted, and judged by whether a server was away."""
        reader = self._reader()
        with (self.folder / "cuts.jsonl").open("a", buffering=1) as lines:
            while True:
                try:
                    lines.write(json.dumps(reader.cut()) + "\n")
                except Exception as error:  # noqa: BLE001
                    lines.write(json.dumps({"error": str(error)[:500], "at": time.monotonic()}) + "\n")
                    reader = self._reader()
                    time.sleep(0.2)
                time.sleep(0.25)

    # Steps.

    def _step(self, *works: Callable[[Pipeline], Any], report: str = "step.txt") -> Child:
        """A process that opens the pipeline for each of some things to do."""

        def run() -> None:
            for work in works:
                with Pipeline.open(self.file) as pipeline:
                    work(pipeline)

        return Child.fork(run, self.folder / report)

    def _must(self, name: str, work: Callable[[Pipeline], Any], tries: int = 1) -> None:
        """Do a step that is to succeed: nobody strikes."""
        for left in range(tries, 0, -1):
            begun = time.monotonic()
            child = self._step(work)
            code = child.end()
            if code == 0:
                self._took(name, time.monotonic() - begun)
                return
            if left == 1 or code != _REFUSED:
                self.wrong.append(f"{name} ended with {code}, undisturbed: {child.said()[-1500:]}")
                return
            time.sleep(1)

    def _told(self, name: str, child: Child, code: int) -> None:
        """A step that was disturbed may be refused with a sentence, and never ends in a traceback."""
        if code == _REFUSED:
            self.refused[child.said().split("\n")[0][:100]] += 1
        elif code not in (0, -signal.SIGKILL):
            self.wrong.append(f"{name} ended with {code}: {child.said()[-1500:]}")

    def _took(self, name: str, seconds: float) -> None:
        self.seconds[name] = 0.7 * self.seconds.get(name, seconds) + 0.3 * seconds

    def _wait(self, name: str) -> None:
        """Until a moment within a step of that name."""
        usual = self.seconds.get(name, _JAVA_SECONDS if name in _WITH_JAVA else self.seconds["sync"])
        time.sleep(self.chance.random() * usual)

    # Strikes.

    def strike(self) -> None:
        """One strike, and now and then a sync that nobody disturbs."""
        name = self.chance.choice(STRIKES)
        if (name in ("catalog", "store") and self.store is None) or (name == "disk" and not self.disk.own):
            name = "sync"
        if getattr(self, f"_strike_{name}")():
            self.kills[name] += 1
        else:
            self.missed += 1
        if self.chance.random() < 0.25:
            self._must("sync", lambda pipeline: pipeline.sync(), tries=3)

    def _kill(self, name: str, *works: Callable[[Pipeline], Any]) -> bool:
        begun, child = time.monotonic(), self._step(*works)
        self._wait(name)
        child.signal(signal.SIGKILL)
        code = child.end()
        if code == 0:
            self._took(name, time.monotonic() - begun)
        self._told(name, child, code)
        return code == -signal.SIGKILL

    def _strike_sync(self) -> bool:
        return self._kill("sync", lambda pipeline: pipeline.sync())

    def _strike_tasks(self) -> bool:
        """Pull, apply, publish, confirm: each opens the pipeline anew; the kill may meet any of them."""
        batch: list[str] = []

        def pull(pipeline: Pipeline) -> None:
            batch.extend(filter(None, [pipeline.pull().batch]))

        return self._kill(
            "tasks",
            pull,
            lambda pipeline: [pipeline.apply(each) for each in batch],
            lambda pipeline: [pipeline.publish(each) for each in batch],
            lambda pipeline: [pipeline.confirm(each) for each in batch],
        )

    def _strike_maintain(self) -> bool:
        met = self._kill("maintain", lambda pipeline: pipeline.maintain())
        self._must("maintain", lambda pipeline: pipeline.maintain(), tries=3)
        return met

    def _strike_verify(self) -> bool:
        return self._kill("verify", lambda pipeline: pipeline.verify())

    def _strike_backfill(self) -> bool:
        table = self.chance.choice(("public.account", "public.settled", "public.left_list"))
        return self._kill("backfill", lambda pipeline: pipeline.backfill(table))

    def _strike_frozen(self) -> bool:
        """One sync stands still while another one works, and then goes on."""
        first = self._step(lambda pipeline: pipeline.sync())
        self._wait("sync")
        met = first.is_alive()
        first.signal(signal.SIGSTOP)
        second = self._step(lambda pipeline: pipeline.sync(), report="second.txt")
        time.sleep(self.chance.random() * 2)
        first.signal(signal.SIGCONT)
        for child in (first, second):
            self._told("frozen", child, child.end())
        return met

    def _strike_source(self) -> bool:
        return self._without(lambda: self.source.restart("immediate"))

    def _strike_catalog(self) -> bool:
        assert self.catalog is not None
        return self._without(lambda: self.catalog.restart("immediate"), read=True)  # type: ignore[union-attr]

    def _strike_store(self) -> bool:
        return self._without(self._restart_store, read=True)

    def _restart_store(self) -> None:
        assert self.store is not None
        if (pid := self.store.pid()) is not None:
            os.kill(pid, signal.SIGKILL)
        self.store.stop()
        self.store.start()

    def _strike_network(self) -> bool:
        """The way to the source is slow, silent for a while, or cut, once or a few times."""
        kind = self.chance.choice(("slow 0.05", "slow 0.5", "hole", "cut"))
        child = self._step(lambda pipeline: pipeline.sync())
        self._wait("sync")
        met = child.is_alive()
        for _ in range(self.chance.randint(1, 3) if kind == "cut" else 1):
            self.network.be(kind)
            time.sleep(self.chance.random() * 3)
        self.network.be("whole")
        self._told("a bad network", child, child.end())
        return met

    def _strike_disk(self) -> bool:
        """There is no room for what a sync writes: not for all of it, or for nothing; small ones may fit."""
        with self.disk.without_room(self.chance.choice((0, 1 << 12, 1 << 16, 1 << 20))):
            child = self._step(lambda pipeline: pipeline.sync())
            code = child.end()
        self._told("a full disk", child, code)
        return code != 0

    def _without(self, restart: Callable[[], None], *, read: bool = False) -> bool:
        """A server ends at once, and begins again, while a sync works; `read`: readers need it, too."""
        child = self._step(lambda pipeline: pipeline.sync())
        self._wait("sync")
        met, ended = child.is_alive(), time.monotonic()
        restart()
        if read:
            self.away.append((ended, time.monotonic() + _READER_SECONDS))
        self._told("a server that ended", child, child.end())
        return met

    # The end.

    def judge(self) -> dict[str, int]:
        """Compare all cuts with each other and with the source; return what there was."""
        self._must("sync", lambda pipeline: pipeline.sync(), tries=3)
        self._must("verify", _require_equal)
        self._must("maintain", _maintain_without_grace)
        final = workload.held(self.source.dsn())
        read = workload.read_lines(self.folder / "cuts.jsonl")
        cuts = [cut for cut in read if "error" not in cut]
        self.wrong += sorted(
            {f"the reader: {e['error']}" for e in read if "error" in e and not self._away(e["at"])}
        )
        log = [line for n in range(2) for line in workload.read_lines(self._log(n))]
        for cut in cuts:
            self.wrong += [f"{cut['lsn']}: {what}" for what in workload.wrong_with(cut)]
        self.wrong += workload.wrong_between(cuts, final, log)
        last = Child.fork(self._read_once, self.folder / "last.txt")
        if last.end() != 0:
            self.wrong.append(f"the last cut: {last.said()[-1500:]}")
        else:
            now = json.loads((self.folder / "last.json").read_text())
            self.wrong += [
                f"{table} differs from the source at the end"
                for table in workload.TABLES
                if sorted(map(tuple, now[table])) != sorted(final[table])
            ]
            self.wrong += now["left"]
        points = len({cut["lsn"] for cut in cuts})
        return {"cuts": len(cuts), "points": points, "transactions": sum(line[0] == "ended" for line in log)}

    def _away(self, at: float) -> bool:
        return any(begun <= at <= ended for begun, ended in self.away)

    def _read_once(self) -> None:
        reader = self._reader()
        cut = reader.cut()
        cut["left"] = [f"nothing leads to {each}" for each in reader.left_behind(self._place)]
        (self.folder / "last.json").write_text(json.dumps(cut))

    def _place(self, location: str) -> Path:
        if self.store is not None:
            return self.store.folder / "objects" / location.removeprefix("s3://")
        return Path(location.removeprefix("file://").removeprefix("file:"))


def _require_equal(pipeline: Pipeline) -> None:
    report = pipeline.verify()
    assert report.equal, str(report)


def _maintain_without_grace(pipeline: Pipeline) -> None:
    """As `maintain` does it days later: what nothing leads to is old enough."""
    expiry: Any = importlib.import_module("slotlake.spark.maintenance.expiry")
    expiry._minimum_age = lambda path, present, grace: 0.0
    pipeline.maintain()


def _warmed(folder: Path) -> None:
    """Import here what a step imports, so that a fork of this process has it: one that did all names it."""
    names, kinds = (
        folder / "modules.json",
        ("slotlake.", "pyiceberg.", "psycopg", "sqlalchemy.", "pyarrow.", "numpy"),
    )

    def work() -> None:
        with (
            _servers(folder, "folder") as (source, way, _, _),
            psycopg.connect(source.dsn(), autocommit=True) as one,
        ):
            made = Round(folder, "folder", random.Random(0), source, way, Disk(folder, own=False))
            one.execute(made.lay().encode())
            with Pipeline.open(made.file) as pipeline:
                pipeline.init()
                one.execute("UPDATE account SET balance = 0; INSERT INTO settled VALUES (1, 0)")
                pipeline.sync()
                pipeline.maintain()
                pipeline.verify()
        names.write_text(json.dumps(sorted(name for name in sys.modules if name.startswith(kinds))))

    child = Child.fork(work, folder / "warm.txt")
    assert child.end() == 0, child.said()
    for name in json.loads(names.read_text()):
        with suppress(Exception):
            importlib.import_module(name)


@contextmanager
def _servers(folder: Path, kind: str) -> Iterator[tuple[EmbeddedPostgres, Network, Any, Any]]:
    with ExitStack() as stack:
        conf = {"shared_buffers": "16MB", "max_connections": "60", "logical_decoding_work_mem": "64kB"}
        source = stack.enter_context(temporary_postgres(conf=conf))
        way = stack.enter_context(network(source.port))
        if kind == "folder":
            yield source, way, None, None
            return
        catalog = stack.enter_context(temporary_postgres(conf=conf))
        store = stack.enter_context(LocalObjectStore(folder / "s3", find_java()))
        yield source, way, catalog, store


def run_round(folder: Path, kind: str, seed: str, kills: int, *, torn: bool = False) -> dict[str, Any]:
    """Return the line of the record of one round."""
    begun = time.monotonic()
    with Disk.mounted(folder / "disk") as disk, _servers(disk.folder, kind) as (source, way, catalog, store):
        made = Round(folder, kind, random.Random(seed), source, way, disk, catalog, store, torn)
        try:
            made.prepare()
            made.writers()
            while sum(made.kills.values()) < kills:
                made.strike()
        finally:
            made.stop()
        counts = made.judge()
    return {
        "seed": seed, "kind": kind, "kills": sum(made.kills.values()), **counts,
        "missed": made.missed, "seconds": round(time.monotonic() - begun), "struck": dict(made.kills),
        "refused": dict(made.refused), "wrong": made.wrong[:50],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=KILLS_PER_ROUND)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--record", type=Path, help="a round is a line of it; those that it has are not run again"
    )
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--torn", action="store_true", help="break the reader on purpose: wrong is right")
    given = parser.parse_args()
    lines = workload.read_lines(given.record) if given.record else []
    wrong = [what for line in lines for what in line["wrong"]]
    struck = sum(line["kills"] for line in lines)
    base = Path(tempfile.mkdtemp(prefix="chaos_"))
    try:
        _warmed(base)
        number = len(lines)
        while struck < given.kills:
            folder = base / str(number)
            folder.mkdir()
            kind = given.kind or KINDS[number % len(KINDS)]
            count = min(KILLS_PER_ROUND, given.kills - struck)
            line = run_round(folder, kind, f"{given.seed} {number}", count, torn=given.torn)
            print(json.dumps(line), flush=True)
            if given.record:
                with given.record.open("a") as record:
                    record.write(json.dumps(line) + "\n")
            struck, number = struck + line["kills"], number + 1
            wrong += line["wrong"]
            if not line["wrong"]:
                shutil.rmtree(folder)
    finally:
        if not wrong:
            shutil.rmtree(base, ignore_errors=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
