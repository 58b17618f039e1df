"""`slotlake demo`: PostgreSQL, Spark and Airflow on this machine, from the initial copy to a proof.

It runs PostgreSQL 18 with pgbench's bank, a Spark Connect server and a real Airflow.  Airflow makes the
initial copy and all batches, with the same DAGs that a user runs. The demo only writes to the source,
watches, and checks.  Invariant: the demo stops every process that it started, by its id, however it ends;
except with ``--keep``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from slotlake.decoder.errors import SetupError
from slotlake.decoder.lsn import format_lsn
from slotlake.infra.config.pipeline_file import PipelineFile, load_pipeline
from slotlake.infra.demo.bank import DATABASE, SUMS, Bank, points, transactions_of
from slotlake.infra.demo.dag_runs import SYNC, lake_of, show_position, sync_seconds, wait_run
from slotlake.infra.demo.page import Outcome, page, reader
from slotlake.infra.demo.screen import Screen, Step
from slotlake.infra.launch.folders import CHECKOUT, home
from slotlake.infra.local.airflow import LocalAirflow
from slotlake.infra.local.airflow_client import AirflowClient
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.infra.local.postgres import EmbeddedPostgres
from slotlake.infra.local.postgres_binaries import postgres_folder
from slotlake.infra.local.process import write_private
from slotlake.infra.local.runtime import spark_runtime
from slotlake.infra.local.spark_connect import LocalSparkConnect

SCHEDULE_SECONDS = 10
WRITE_SECONDS_MAX = 50.0
RATE_MIN = 300.0  # a second, so that few transactions do not take long
WATCH_SECONDS = 2.0
_DEMO_FILE = "demo.json"
_BOOTSTRAP, _VERIFY, _MONITOR = "cdc_bootstrap_demo", "cdc_verify_demo", "cdc_monitor_demo"


def run_demo(*, scale: int, transactions: int, keep: bool, folder: Path | None, s3: bool = False) -> int:
    """Run the demo; return 0 if the lake equals the source and the sums are equal at every point, else 1.

    Args:
        scale: pgbench's scale factor; 1 is 100,000 accounts.
        transactions: how many pgbench writes.
        keep: do not stop the servers at the end.
        folder: of the demo; None: in slotlake's cache folder.
        s3: start an S3 server, too, and keep the lake in it.

    Raises:
        SetupError: a server does not start, or a DAG run fails; the message says why.
    """
    demo = Demo(_folder(folder), scale=scale, transactions=transactions, keep=keep, s3=s3)
    with _signals_interrupt(), Screen() as screen:
        demo.prepare()
        try:
            outcome = demo.run(screen)
        except BaseException:
            with _signals_ignored():
                screen.note("stopping the servers …")
                demo.stop()
            raise
        if not keep:
            with _signals_ignored():
                ending = screen.step("stop")
                demo.stop()
                demo.forget_servers()
                ending.end("all servers have stopped")
    sys.stdout.write("\n" + page(outcome))
    sys.stdout.flush()
    return 0 if outcome.good else 1


def stop_demo(folder: Path | None) -> int:
    """Stop the servers of a demo with ``--keep``; return 0, also if none runs."""
    place = _folder(folder)
    if not (place / _DEMO_FILE).exists():
        sys.stdout.write(f"there is no demo in {place}\n")
        return 0
    demo = Demo(place, scale=0, transactions=0, keep=True)
    running = demo.running()
    demo.stop()
    sys.stdout.write(f"stopped the demo in {place}\n" if running else f"no demo is running in {place}\n")
    return 0


class Demo:
    """One folder with all servers and files of a demo."""

    def __init__(self, folder: Path, *, scale: int, transactions: int, keep: bool, s3: bool = False) -> None:
        self.folder = folder
        self.scale = scale
        self.transactions = transactions
        self.keep = keep
        self.started = time.monotonic()
        # The threads live as long as the demo: a server that ends with its parent ends with the thread.
        self.threads = ThreadPoolExecutor(4)
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
        self.postgres = EmbeddedPostgres(postgres_folder(f"demo-{digest}"), dies_with_parent=not keep)
        self.bank = Bank(self.postgres, folder)
        self.pipeline_file = folder / "demo.yaml"
        self.airflow = LocalAirflow(
            folder / "airflow",
            CHECKOUT / "dags",
            environment={"SLOTLAKE_PIPELINES": str(self.pipeline_file)},
            parse_seconds=120,
            dies_with_parent=not keep,
            triggerer=True,  # Airflow's first screen is red without one
        )
        runtime = spark_runtime("s3" if s3 else "")
        self.spark = LocalSparkConnect(folder / "spark", runtime, memory="1g", dies_with_parent=not keep)
        self.s3 = s3
        self.objects = LocalObjectStore(folder / "s3", runtime.java, dies_with_parent=not keep)

    # -- life ---------------------------------------------------------------------------------------------

    def running(self) -> bool:
        """Return whether any server is running."""
        servers = (self.spark, self.postgres, self.objects)
        return bool(self.airflow.members()) or any(server.pid() is not None for server in servers)

    def prepare(self) -> None:
        """Make an empty folder: delete the files of an earlier demo, and nothing else.

        Raises:
            SetupError: a demo is running in the folder, or the folder holds other files.
        """
        if self.running():
            raise SetupError(
                "a demo is running in this folder",
                where=str(self.folder),
                way_out="stop it with slotlake demo --stop, or give another folder with --dir",
            )
        if self.folder.exists() and any(self.folder.iterdir()) and not (self.folder / _DEMO_FILE).exists():
            raise SetupError(
                "the folder is not empty, and its files are not of a demo",
                where=str(self.folder),
                way_out="give an empty or a new folder with --dir",
            )
        self.airflow.remove()
        self.postgres.remove()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, mode=0o700)
        (self.folder / _DEMO_FILE).write_text(json.dumps({"postgres": str(self.postgres.folder)}))

    def stop(self) -> None:
        """Stop all servers, each by its id; works in any state of the demo."""
        self._end_parts()
        # A thread may have started its server just after the first round.
        self.threads.shutdown(wait=True, cancel_futures=True)
        self._end_parts()

    def forget_servers(self) -> None:
        """Delete the data of PostgreSQL and Airflow, which are of no use now. The lake and the logs stay."""
        self.postgres.remove()
        self.airflow.metadata.remove()

    def _end_parts(self) -> None:
        for end in (
            self.bank.stop,
            self.airflow.stop,
            self.spark.stop,
            self.objects.stop,
            self._end_postgres,
        ):
            with contextlib.suppress(OSError):
                end()

    def _end_postgres(self) -> None:
        """Stop PostgreSQL, without a last checkpoint if nobody will start it again."""
        self.postgres.stop("fast" if self.keep else "immediate")

    # -- the run ------------------------------------------------------------------------------------------

    def run(self, screen: Screen) -> Outcome:
        """Do everything from an empty folder to the proof."""
        screen.note(f"the demo's folder is {self.folder}")
        client = self._start(screen, self.threads)
        pipeline = load_pipeline(self.pipeline_file)
        copied = self._bootstrap(screen, client)
        rate = self._live(screen, client, pipeline)
        if self.keep:
            client.pause(_MONITOR, False)  # the page in Airflow shows what it notes
        else:
            client.pause(SYNC, True)
        verified = self._verify(screen, client)
        return self._outcome(screen, client, pipeline, copied=copied, verified=verified, rate=rate)

    def _start(self, screen: Screen, threads: ThreadPoolExecutor) -> AirflowClient:
        """Start everything slow at the same time: the bank's rows, Spark, Airflow."""
        steps = {name: screen.step(name) for name in ("PostgreSQL, pgbench -i", "Spark Connect", "Airflow")}
        sparks = threads.submit(self.spark.start)
        steps["PostgreSQL, pgbench -i"].show("starting")
        self.postgres.start()
        if self.s3:
            self.objects.start()
        self._write_files()
        filled = threads.submit(self.bank.fill, self.scale)
        self._start_airflow()
        waiting: dict[str, tuple[Future[Any], Callable[[], str]]] = {
            "PostgreSQL, pgbench -i": (filled, lambda: f"{self.scale * 100_000:,} accounts in {DATABASE}"),
            "Spark Connect": (sparks, lambda: "warm"),
            "Airflow": (threads.submit(self.airflow.wait_ready), lambda: self.airflow.url),
        }
        self._wait_all(waiting, steps)
        client: AirflowClient = waiting["Airflow"][0].result()
        client.wait_dags((_BOOTSTRAP, SYNC, _VERIFY, _MONITOR))
        screen.note(f"Airflow's UI: {self.airflow.url}  user admin, password {self.airflow.password}")
        return client

    def _wait_all(
        self, waiting: dict[str, tuple[Future[Any], Callable[[], str]]], steps: dict[str, Step]
    ) -> None:
        unfinished = set(waiting)
        while unfinished:
            for name in sorted(unfinished):
                future, text = waiting[name]
                if future.done():
                    future.result()
                    steps[name].end(text())
                    unfinished.discard(name)
                else:
                    steps[name].show("starting")
            time.sleep(0.1)

    def _start_airflow(self) -> None:
        """Start Airflow with the address of Spark, which is known before Spark has started."""
        give_up = time.monotonic() + 60.0
        while not (self.folder / "spark" / "server.json").exists():
            if time.monotonic() > give_up:
                raise SetupError(
                    "Spark Connect does not start",
                    where=str(self.spark.log),
                    way_out="read this log",
                )
            time.sleep(0.05)
        self.airflow.environment |= self.spark.client_environment()
        self.airflow.start()

    def _bootstrap(self, screen: Screen, client: AirflowClient) -> dict[str, Any]:
        step = screen.step("initial copy")
        client.pause(_BOOTSTRAP, False)
        run = client.trigger(_BOOTSTRAP)
        wait_run(client, _BOOTSTRAP, run, step)
        copied: dict[str, Any] = client.xcoms(_BOOTSTRAP, run)["bootstrap", "return_value"]
        step.end(f"{copied['rows']:,} rows at {copied['lsn']}, by {_BOOTSTRAP}")
        return copied

    def _live(self, screen: Screen, client: AirflowClient, pipeline: PipelineFile) -> float:
        """Let pgbench write and the DAG sync until the lake has all rows; return transactions per second."""
        rate = max(RATE_MIN, self.transactions / WRITE_SECONDS_MAX)
        writing, syncing = screen.step("pgbench writes"), screen.step("cdc_sync")
        total = self.transactions
        client.pause(SYNC, False)

        watched = time.monotonic()

        def show_progress(done: int) -> None:
            nonlocal watched
            writing.show(f"{done:,} transactions", min(done, total), total)
            if time.monotonic() - watched > WATCH_SECONDS:
                show_position(client, pipeline, syncing)
                watched = time.monotonic()

        self.bank.write(total, rate, show_progress)
        writing.end(f"{transactions_of(self.folder / 'pgbench.log'):,} transactions, {rate:,.0f}/s")
        target = self.bank.position()
        while show_position(client, pipeline, syncing) < target:
            time.sleep(WATCH_SECONDS)
        syncing.end(f"the lake has reached {format_lsn(target)}, the end of the writes")
        return rate

    def _verify(self, screen: Screen, client: AirflowClient) -> dict[str, Any]:
        step = screen.step("verify")
        client.pause(_VERIFY, False)
        run = client.trigger(_VERIFY)
        wait_run(client, _VERIFY, run, step)
        verified: dict[str, Any] = client.xcoms(_VERIFY, run)["verify", "return_value"]
        step.end(f"equal at {verified['lsn']}")
        return verified

    def _outcome(
        self,
        screen: Screen,
        client: AirflowClient,
        pipeline: PipelineFile,
        *,
        copied: dict[str, Any],
        verified: dict[str, Any],
        rate: float,
    ) -> Outcome:
        step = screen.step("sums at each point")
        points_read = []
        for point in points(lake_of(pipeline), pipeline.changelog_dir):
            points_read.append(point)
            step.show(f"{len(points_read)} points read")
        step.end(f"{sum(point.holds for point in points_read)} of {len(points_read)} points have equal sums")
        return Outcome(
            folder=self.folder,
            pipeline_file=self.pipeline_file,
            left_running=self.keep,
            in_s3=self.s3,
            airflow_url=self.airflow.url,
            airflow_password=self.airflow.password,
            write_more=self.bank.command(),
            scale=self.scale,
            rate=rate,
            schedule_seconds=SCHEDULE_SECONDS,
            written=transactions_of(self.folder / "pgbench.log"),
            copied=copied,
            sync_seconds=sync_seconds(client),
            verified=verified,
            points=points_read,
            seconds=time.monotonic() - self.started,
        )

    def _write_files(self) -> None:
        """Write the pipeline file (mode 0600: it holds a password) and a script that reads the lake."""
        warehouse = self.objects.warehouse if self.s3 else f"file://{self.folder}/warehouse"
        storage = self.objects.storage if self.s3 else {}
        write_private(self.folder / "read.py", reader(self.folder, warehouse, storage))
        tables = "".join(f"  {table}: {{}}\n" for table in SUMS)
        write_private(
            self.pipeline_file,
            f"""name: demo
source:
  dsn: "{self.postgres.url(DATABASE)}"
  publications: [demo]
  slot: demo
lake:
  catalog: lake
  uri: "sqlite:///{self.folder}/lake.db"
  warehouse: "{warehouse}"
{textwrap.indent(yaml.safe_dump({"storage": storage}), "  ") if storage else ""}  namespace: bank
  views: true
airflow:
  schedule: {SCHEDULE_SECONDS}
  verify: manual  # once, after the writes: comparing all accounts after each batch would take both cores
tables:
{tables}""",
        )


def _folder(folder: Path | None) -> Path:
    return (folder or home() / "demo").absolute()


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does, so that all servers stop."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore signals: a second Ctrl-C must not leave processes behind."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
