"""A small client of Airflow's REST API (/api/v2): what the demo and the tests ask of a scheduler.

It owns the token.  Answers are Airflow's JSON as it is; what Airflow refuses is a ``SetupError`` with the
status and Airflow's own reason.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import ProxyHandler, Request, build_opener

from slotlake.decoder.errors import SetupError

_ENDED = ("success", "failed")
_OPENER = build_opener(ProxyHandler({}))  # loopback: never through a proxy


class AirflowClient:
    """REST calls as the user ``user``; the token is fetched at the first call that needs one."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url = url.rstrip("/")
        self._login = {"username": user, "password": password}
        self._token = ""

    # -- the service --------------------------------------------------------------------------------------

    def healthy(self, *, with_triggerer: bool = False) -> bool:
        """True when the API server answers and says that scheduler and DAG processor are alive.

        Args:
            with_triggerer: the triggerer must be alive too.
        """
        try:
            health = json.loads(self._send("GET", "/api/v2/monitor/health", None, {}, 5.0))
            # Its first request builds the tasks' API, which takes seconds: better now than under a task.
            self._send("GET", "/execution/health", None, {}, 60.0)
        except (OSError, ValueError, SetupError):
            return False
        parts = ["metadatabase", "scheduler", "dag_processor", *(["triggerer"] if with_triggerer else [])]
        return all((health.get(part) or {}).get("status") == "healthy" for part in parts)

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Call the REST API and return its answer, read from JSON; None when it answers nothing.

        Args:
            path: the path below ``/api/v2``.
            body: what is sent as JSON; None sends nothing.
            query: the query's parameters; a list becomes a repeated parameter.

        Raises:
            SetupError: Airflow cannot be reached or refuses.
        """
        if not self._token:
            answer = self._send("POST", "/auth/token", self._login, {}, 30.0)
            self._token = json.loads(answer)["access_token"]
        suffix = f"?{urlencode(query, doseq=True)}" if query else ""
        headers = {"Authorization": f"Bearer {self._token}"}
        answer = self._send(method, f"/api/v2{path}{suffix}", body, headers, 30.0)
        return json.loads(answer) if answer else None

    def page(self, path: str) -> str:
        """The text of a page of the UI."""
        return self._send("GET", path, None, {}, 30.0).decode()

    # -- DAGs ---------------------------------------------------------------------------------------------

    def dags(self) -> dict[str, dict[str, Any]]:
        """The DAGs that exist now, by id."""
        return {dag["dag_id"]: dag for dag in self.call("GET", "/dags", limit=1000)["dags"]}

    def wait_dags(self, dag_ids: Sequence[str], seconds_max: float = 60.0) -> None:
        """Wait until the DAG processor has read these DAGs.

        Raises:
            SetupError: some are not there after ``seconds_max``; import errors are its way out.
        """
        give_up = time.monotonic() + seconds_max
        while missing := set(dag_ids) - set(self.dags()):
            if time.monotonic() > give_up:
                errors = [error["stack_trace"].strip() for error in self.import_errors()]
                raise SetupError(
                    f"Airflow has no DAG {', '.join(sorted(missing))} after {seconds_max:.0f} s",
                    where=self.url,
                    way_out="; ".join(errors) or "see dag-processor.log",
                )
            time.sleep(0.2)

    def import_errors(self) -> list[dict[str, Any]]:
        """DAG files that could not be read, and why."""
        errors: list[dict[str, Any]] = self.call("GET", "/importErrors")["import_errors"]
        return errors

    def pause(self, dag: str, paused: bool) -> None:
        """Stop or let go on the schedule of a DAG."""
        self.call("PATCH", f"/dags/{quote(dag)}", {"is_paused": paused})

    # -- runs ---------------------------------------------------------------------------------------------

    def trigger(self, dag: str, form: Mapping[str, Any] | None = None) -> str:
        """Start a run by hand, with what its form would hold; its id."""
        body = {"logical_date": None, "conf": dict(form or {})}
        return str(self.call("POST", f"/dags/{quote(dag)}/dagRuns", body)["dag_run_id"])

    def backfill(self, dag: str, start: datetime, end: datetime, form: Mapping[str, Any]) -> int:
        """Make one run for each logical date of a range, as the Backfill button does.

        Args:
            start: the first logical date.
            end: the last logical date, included.
            form: the values of the form's fields.

        Returns:
            The backfill's id.
        """
        body = {
            "dag_id": dag,
            "from_date": start.isoformat(),
            "to_date": end.isoformat(),
            "dag_run_conf": dict(form),
            "max_active_runs": 1,
            "reprocess_behavior": "completed",
        }
        return int(self.call("POST", "/backfills", body)["id"])

    def run(self, dag: str, run: str) -> dict[str, Any]:
        """One run."""
        answer: dict[str, Any] = self.call("GET", f"/dags/{quote(dag)}/dagRuns/{quote(run)}")
        return answer

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """The newest hundred runs of a DAG, oldest first."""
        newest_first: list[dict[str, Any]] = self.call(
            "GET", f"/dags/{quote(dag)}/dagRuns", limit=100, order_by="-id"
        )["dag_runs"]
        return newest_first[::-1]

    def wait_run(self, dag: str, run: str, seconds_max: float = 120.0) -> str:
        """Wait for the end of a run and return its state, ``success`` or ``failed``.

        Args:
            seconds_max: how long to wait.

        Raises:
            SetupError: the run has not ended after ``seconds_max``.
        """
        give_up = time.monotonic() + seconds_max
        while (state := str(self.run(dag, run)["state"])) not in _ENDED:
            if time.monotonic() > give_up:
                raise SetupError(
                    f"{dag} {run} is still {state} after {seconds_max:.0f} s",
                    where=self.url,
                    way_out="read the logs of its tasks there",
                )
            time.sleep(0.2)
        return state

    def tasks(self, dag: str, run: str) -> dict[str, dict[str, Any]]:
        """The task instances of a run, by task id."""
        answer = self.call("GET", f"/dags/{quote(dag)}/dagRuns/{quote(run)}/taskInstances", limit=1000)
        return {task["task_id"]: task for task in answer["task_instances"]}

    def clear(
        self, dag: str, run: str, tasks: Sequence[str] | None = None, *, downstream: bool = False
    ) -> None:
        """Clear tasks of a run, so that they run again.

        Args:
            tasks: the ids of the tasks; None clears all.
            downstream: also clear the tasks that depend on them.
        """
        body: dict[str, Any] = {
            "dry_run": False,
            "dag_run_id": run,
            "only_failed": False,
            "reset_dag_runs": True,
            "include_downstream": downstream,
        }
        if tasks is not None:
            body["task_ids"] = list(tasks)
        self.call("POST", f"/dags/{quote(dag)}/clearTaskInstances", body)

    def log(self, dag: str, run: str, task: str, attempt: int = 1) -> str:
        """Return the log of a task as JSON text.

        Args:
            attempt: which try, from 1.
        """
        path = f"/dags/{quote(dag)}/dagRuns/{quote(run)}/taskInstances/{quote(task)}/logs/{attempt}"
        return json.dumps(self.call("GET", path, full_content="true"), ensure_ascii=False)

    def reason(self, dag: str, run: str) -> str:
        """Why a run failed: the messages of its failed tasks."""
        failed = [task for task in self.tasks(dag, run).values() if task["state"] == "failed"]
        return "\n".join(
            f"{task['task_id']}: {message}"
            for task in failed
            for message in self._messages(dag, run, task["task_id"], task["try_number"])
        )

    def _messages(self, dag: str, run: str, task: str, attempt: int) -> list[str]:
        path = f"/dags/{quote(dag)}/dagRuns/{quote(run)}/taskInstances/{quote(task)}/logs/{attempt}"
        lines = self.call("GET", path, full_content="true")["content"]
        details = [
            detail for line in lines if isinstance(line, dict) for detail in line.get("error_detail") or ()
        ]
        return [str(detail["exc_value"]) for detail in details] or ["see its log"]

    def xcoms(self, dag: str, run: str) -> dict[tuple[str, str], Any]:
        """All XComs of a run: (task, key) → value."""
        base = f"/dags/{quote(dag)}/dagRuns/{quote(run)}/taskInstances"
        entries = self.call("GET", f"{base}/~/xcomEntries", limit=1000)["xcom_entries"]
        return {
            (entry["task_id"], entry["key"]): self.call(
                "GET", f"{base}/{quote(entry['task_id'])}/xcomEntries/{quote(entry['key'])}"
            )["value"]
            for entry in entries
        }

    def asset_events(self) -> list[dict[str, Any]]:
        """The newest hundred asset events, oldest first."""
        newest_first: list[dict[str, Any]] = self.call(
            "GET", "/assets/events", limit=100, order_by="-timestamp"
        )["asset_events"]
        return newest_first[::-1]

    # -- how ----------------------------------------------------------------------------------------------

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str], seconds_max: float) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = Request(  # noqa: S310 (an http address that we made)
            self.url + path,
            data=data,
            method=method,
            headers={"Content-Type": "application/json", "Accept": "application/json, text/html", **headers},
        )
        try:
            with _OPENER.open(request, timeout=seconds_max) as answer:
                return bytes(answer.read())
        except HTTPError as refusal:
            reason = refusal.read().decode(errors="replace")[:500]
            raise SetupError(
                f"Airflow answered {refusal.code}: {reason}",
                where=f"{method} {path}",
                way_out="read the log of Airflow's API server",
            ) from None
        except OSError as error:
            raise SetupError(
                f"Airflow does not answer: {error}",
                where=f"{method} {self.url}{path}",
                way_out="see that its API server runs",
            ) from None
