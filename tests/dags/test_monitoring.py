"""What becomes of a status report as an Airflow task, and where its gauges go, without a scheduler."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = """name: shop
source: {dsn: "postgresql://u:p@127.0.0.1:1/db", publications: [p], slot: s}
lake: {uri: "sqlite:///lake.db", warehouse: warehouse, namespace: n}
"""
QUIET = {
    "state": "ready",
    "alarms": [],
    "warnings": [],
    "last_consistent_lsn": "0/1",
    "lag_seconds": 1.5,
    "batch_lag_seconds": None,
    "lag_bytes": 10,
    "retained_wal_bytes": 1 << 20,
    "safe_wal_size": None,
    "wal_bytes_per_second": 3.0,
    "seconds_to_invalidation": None,
}


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``look(report, paused=…)``: the task, with that report."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow-home"))
    from slotlake.infra.airflow import monitoring, steps

    file = tmp_path / "shop.yaml"
    file.write_text(FILE)

    def look(report: dict[str, Any], *, paused: bool | Exception = False) -> dict[str, Any]:
        def get_dag(dag: str) -> SimpleNamespace:
            assert dag == "cdc_sync_shop"
            if isinstance(paused, Exception):
                raise paused
            return SimpleNamespace(is_paused=paused)

        monkeypatch.setattr(steps, "status", lambda path, more: (more(report), report)[1])
        return monitoring.watch(str(file), SimpleNamespace(get_dag=get_dag))

    return look


def test_quiet(look: Any) -> None:
    seen = look(QUIET)
    assert (seen["state"], seen["lag_seconds"], seen["ready"], seen["alarms"]) == ("ready", 1.5, 1, 0)
    assert "safe_wal_size" not in seen


def test_an_alarm_fails_the_task_at_once(look: Any) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    alarm = {"kind": "lag", "what": "nothing newer", "way_out": "sync"}
    with pytest.raises(AirflowFailException, match="nothing newer\n  what to do: sync"):
        look({**QUIET, "alarms": [alarm]})
    for state in ("slot missing", "slot lost"):
        with pytest.raises(AirflowFailException, match=f"{state}\n  what to do: slotlake recover"):
            look({**QUIET, "state": state})
    missing = {"kind": "slot missing", "what": "it does not exist", "way_out": "slotlake recover"}
    with pytest.raises(AirflowFailException, match=r"^it does not exist\n  what to do: slotlake recover$"):
        look({**QUIET, "state": "slot missing", "alarms": [missing]})  # told once


def test_what_may_pass_is_tried_again_and_what_is_not_there_is_skipped(look: Any) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

    with pytest.raises(AirflowException, match="away") as caught:
        look({**QUIET, "state": "source unreachable", "warnings": ["the server is away"]})
    assert not isinstance(caught.value, AirflowFailException)
    with pytest.raises(AirflowSkipException):
        look({**QUIET, "state": "not initialised"})


def test_a_paused_sync_is_told_unless_something_else_syncs(look: Any) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match=r"is paused.*retains more and more WAL \(1.0 MB now\)"):
        look({**QUIET, "lag_seconds": 300.0}, paused=True)
    assert look(QUIET, paused=True)["state"] == "ready"
    assert look({**QUIET, "lag_seconds": 300.0}, paused=RuntimeError("no such question"))["ready"] == 1


SEND = """
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils
from slotlake.infra.airflow.monitoring import send
stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
send("shop", {"lag_bytes": 5.0})
import os; os._exit(0)  # as a task's process ends
"""


@pytest.mark.seconds
def test_gauges_go_where_airflow_sends_its_own(tmp_path: Path) -> None:
    """By OpenTelemetry, to a real collector's port; a task's process sends them before it ends."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    with _collector() as (port, bodies):
        metrics = {"OTEL_ON": "True", "OTEL_HOST": "127.0.0.1", "OTEL_PORT": str(port)}
        own = {f"AIRFLOW__METRICS__{name}": value for name, value in metrics.items()}
        proxies = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        subprocess.run(
            [sys.executable, "-c", SEND],
            cwd=ROOT,
            env={**os.environ, **own, **proxies, "AIRFLOW_HOME": str(tmp_path / "home")},
            capture_output=True,
            check=True,
        )
    gauges = {
        metric.name: (point.as_double, {each.key: each.value.string_value for each in point.attributes})
        for body in bodies
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.gauge.data_points
    }
    assert gauges["airflow.slotlake.shop.lag_bytes"] == (5.0, {"pipeline": "shop"})


@contextmanager
def _collector() -> Iterator[tuple[int, list[bytes]]]:
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
