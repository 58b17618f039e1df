"""A real Airflow with the DAGs of some pipelines, and what a test does with one of these: act, wait, look."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from infra.local.airflow import LocalAirflow
from infra.local.airflow_client import AirflowClient
from infra.pipeline import Pipeline
from spark.read import Cut

SECONDS_MAX = 240.0


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
        """The DAG's name: ``sync``, ``bootstrap``, …"""
        return f"cdc_{kind}_{self.name}"

    def rows(self, table: str, namespace: str = "") -> list[tuple[str | None, ...]]:
        with Pipeline.open(self.file) as pipeline:
            return sorted(Cut.latest(replace(pipeline.lake, namespace=namespace or self.name)).rows(table))

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
            return len([row for row in Cut.latest(pipeline.lake).commits() if row["changed"]])

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
        return self.client.wait_run(self.dag(kind), run, seconds_max=SECONDS_MAX)

    def successes(self) -> list[dict[str, Any]]:
        """Micro-batches that ended well."""
        return [run for run in self.client.runs(self.dag("sync")) if run["state"] == "success"]

    def carried(self, statement: str) -> str:
        """Execute a statement; the id of the run that carried it, be it the schedule's or one by hand."""
        before = {run["dag_run_id"] for run in self.successes()}
        self.database.execute(statement)
        give_up = time.monotonic() + SECONDS_MAX
        while time.monotonic() < give_up:
            for run in self.successes():
                name = run["dag_run_id"]
                if (
                    name not in before
                    and self.client.xcoms(self.dag("sync"), name)["pull", "return_value"]["batch"]
                ):
                    return str(name)
            time.sleep(0.5)
        raise AssertionError(f"no run carried: {statement}")

    def run_again(
        self, kind: str, run: str, tasks: list[str], *, attempt: int, everything: bool = False
    ) -> None:
        """Clear tasks (or the whole run) and wait until these have run again: right after clearing, the run
        may still be called a success."""
        self.client.clear(self.dag(kind), run, None if everything else tasks)

        def done() -> bool:
            found = self.client.tasks(self.dag(kind), run)
            return all(found[t]["state"] == "success" and found[t]["try_number"] >= attempt for t in tasks)

        self.until(done, f"{', '.join(tasks)} ran again")
        assert self.ended(kind, run) == "success"

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait; no micro-batch may fail meanwhile."""
        give_up = time.monotonic() + SECONDS_MAX
        sync = self.dag("sync")
        while not true():
            failed = [run["dag_run_id"] for run in self.client.runs(sync) if run["state"] == "failed"]
            assert not failed, self.client.reason(sync, failed[0])
            assert time.monotonic() < give_up, f"not so after {SECONDS_MAX:.0f} s: {what}"
            time.sleep(0.5)
