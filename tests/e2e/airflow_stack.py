"""A real Airflow with the DAGs of some pipelines, and what a test does with one of these: act, wait, look."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from slotlake import Pipeline
from slotlake.infra.local.airflow import LocalAirflow
from slotlake.infra.local.airflow_client import AirflowClient
from slotlake.spark.read.point import ReadPoint

# For how long nothing at all may happen.  Beside other work a run takes as long as it takes.
STILL_SECONDS_MAX = 240.0
_LOOK_SECONDS = 5.0
_ENDED = ("success", "failed")
_A_PERSON_READS_SECONDS = 2.0


@dataclass
class Stack:
    """Everything a test needs of one pipeline to act and to look.

    Attributes:
        passwords: that must be in no log.
        warned: the file that the monitor's callback writes to.
    """

    name: str
    airflow: LocalAirflow
    client: AirflowClient
    database: psycopg.Connection[Any]
    file: Path
    passwords: list[str]
    warned: Path

    def dag(self, kind: str) -> str:
        """The DAG's name, from ``sync``, ``bootstrap`` and so on."""
        return f"cdc_{kind}_{self.name}"

    def rows(self, table: str, namespace: str = "") -> list[tuple[str | None, ...]]:
        with Pipeline.open(self.file) as pipeline:
            return sorted(
                ReadPoint.latest(replace(pipeline.lake, namespace=namespace or self.name)).rows(table)
            )

    def source(self, table: str) -> list[tuple[str | None, ...]]:
        return sorted(self.database.execute(f"SELECT id::text, v FROM {table}").fetchall())

    def equal(self) -> bool:
        return all(self.rows(table) == self.source(table) for table in ("public.orders", "public.log"))

    def position(self) -> int:
        with Pipeline.open(self.file) as pipeline:
            return pipeline.position()

    def points(self) -> int:
        """Consistency points at which anything changed."""
        with Pipeline.open(self.file) as pipeline:
            return len([row for row in ReadPoint.latest(pipeline.lake).commits() if row["changed"]])

    def sync(self) -> str:
        """One run by hand, to its end; its id."""
        return self.done("sync")

    def done(self, kind: str, form: Mapping[str, Any] | None = None) -> str:
        """A run by hand, which has ended well; its id."""
        run = self.client.trigger(self.dag(kind), form)
        assert self.ended(kind, run) == "success", self.client.reason(self.dag(kind), run)
        return run

    def result(self, kind: str, form: Mapping[str, Any] | None = None) -> Any:
        """What the one task of such a run returns."""
        task = {"maintenance": "maintain"}.get(kind, kind)
        return self.client.xcoms(self.dag(kind), self.done(kind, form))[task, "return_value"]

    def ended(self, kind: str, run: str) -> str:
        patience = Patience(self)
        while (state := str(self.client.run(self.dag(kind), run)["state"])) not in _ENDED:
            patience.require(f"{kind} {run} is still {state}")
            time.sleep(0.3)
        return state

    def states(self, kind: str, run: str) -> dict[str, str]:
        """The state of each task of a run."""
        return {name: task["state"] for name, task in self.client.tasks(self.dag(kind), run).items()}

    def asked(self) -> tuple[str, dict[str, Any]]:
        """Trigger cdc_recover; the run, once it waits for a person, and what this person reads."""
        run = self.client.trigger(self.dag("recover"))
        waiting = ("awaiting_input", "deferred")  # the second before Airflow 3.3
        self.until(lambda: self.states("recover", run)["approve"] in waiting, "a person is asked")
        # Airflow once lost an answer that came as soon as the state was there: the task asked a second time.
        time.sleep(_A_PERSON_READS_SECONDS)
        return run, self.client.call("GET", self._question(run))

    def answer(self, run: str, answer: str, user: str = "admin") -> None:
        """Choose ``Approve`` or ``Reject``."""
        password = json.loads((self.airflow.folder / "passwords.json").read_text())[user]
        body = {"chosen_options": [answer], "params_input": {}}
        AirflowClient(self.airflow.url, user, password).call("PATCH", self._question(run), body)

    def _question(self, run: str) -> str:
        return f"/dags/{self.dag('recover')}/dagRuns/{run}/taskInstances/approve/-1/hitlDetails"

    def drop_slot(self) -> None:
        """Drop the pipeline's slot; the sync is paused, and a micro-batch of it may be at its end.

        A task that is at work would miss the slot, and its run fail.
        """
        self.until(lambda: not self._at_work("sync"), "the last micro-batch has ended")
        give_up = time.monotonic() + 60
        while True:
            try:
                self.database.execute("SELECT pg_drop_replication_slot(%s)", [f"slotlake_{self.name}"])
                return
            except psycopg.errors.ObjectInUse:
                assert time.monotonic() < give_up
                time.sleep(0.2)

    def _at_work(self, kind: str) -> bool:
        runs = [run for run in self.client.runs(self.dag(kind)) if run["state"] not in _ENDED]
        return any(
            state in ("queued", "running")
            for run in runs
            for state in self.states(kind, run["dag_run_id"]).values()
        )

    def batch_events(self) -> list[dict[str, Any]]:
        """The newest events of the pipeline's own asset, oldest first."""
        return [event for event in self.client.asset_events() if event["uri"] == f"slotlake://{self.name}/"]

    def happening(self) -> list[object]:
        """The runs of this pipeline's DAGs and their tasks: what is the same twice stands still.

        A task that runs is not still: Airflow itself ends one whose process is gone.
        """
        mine = [dag for dag in self.client.dags() if dag.startswith("cdc_") and dag.endswith(f"_{self.name}")]
        runs = [(dag, run["dag_run_id"], run["state"]) for dag in mine for run in self.client.runs(dag)]
        tasks = [
            (task["task_id"], task["state"], task["try_number"])
            for dag, run, state in runs
            if state not in _ENDED
            for task in self.client.tasks(dag, run).values()
        ]
        running = [time.monotonic()] if any(state == "running" for _, state, _ in tasks) else []
        return [*runs, *tasks, *running]

    def successes(self) -> list[dict[str, Any]]:
        """Micro-batches that ended well."""
        return [run for run in self.client.runs(self.dag("sync")) if run["state"] == "success"]

    def carried(self, statement: str) -> str:
        """Execute a statement; the id of the run that carried it, be it the schedule's or one by hand."""
        before = {run["dag_run_id"] for run in self.successes()}
        self.database.execute(statement)
        patience = Patience(self)
        while True:
            for run in self.successes():
                name = run["dag_run_id"]
                if (
                    name not in before
                    and self.client.xcoms(self.dag("sync"), name)["pull", "return_value"]["batch"]
                ):
                    return str(name)
            patience.require(f"no run carried: {statement}")
            time.sleep(0.5)

    def run_again(
        self, kind: str, run: str, tasks: list[str], *, attempt: int, everything: bool = False
    ) -> None:
        """Clear tasks (or the whole run) and wait until these have run again.

        Right after clearing, the run may still be called a success.
        """
        self.client.clear(self.dag(kind), run, None if everything else tasks)

        def done() -> bool:
            found = self.client.tasks(self.dag(kind), run)
            return all(found[t]["state"] == "success" and found[t]["try_number"] >= attempt for t in tasks)

        self.until(done, f"{', '.join(tasks)} ran again")
        assert self.ended(kind, run) == "success"

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait; no micro-batch may fail meanwhile."""
        patience = Patience(self)
        sync = self.dag("sync")
        while not true():
            failed = [run["dag_run_id"] for run in self.client.runs(sync) if run["state"] == "failed"]
            assert not failed, self.client.reason(sync, failed[0])
            patience.require(f"not so: {what}")
            time.sleep(0.5)


class Patience:
    """Waits as long as anything happens in Airflow, whatever the clock says."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._seen: list[object] = []
        self._since = self._asked = time.monotonic()

    def require(self, what: str) -> None:
        """Raises AssertionError if nothing has happened for a long time."""
        if time.monotonic() - self._asked < _LOOK_SECONDS:
            return
        now, self._asked = self._stack.happening(), time.monotonic()
        if now != self._seen:
            self._seen, self._since = now, self._asked
        still = self._asked - self._since
        assert still < STILL_SECONDS_MAX, f"{what}; nothing has happened for {still:.0f} s: {now}"
