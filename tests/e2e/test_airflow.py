"""The DAGs on a real scheduler, driven through the REST API as a person would click.

One Airflow, one Spark Connect server and one database serve the whole module; its tests build on each other
and run in order.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from decoder.errors import SetupError
from infra.local.airflow import CHECKOUT, LocalAirflow
from infra.local.airflow_client import AirflowClient
from infra.local.chromium import find_chromium
from infra.local.postgres import EmbeddedPostgres
from infra.pipeline import Pipeline
from spark.read import Cut
from tests.e2e.browser import Browser, open_browser

pytestmark = pytest.mark.airflow

BOOTSTRAP, SYNC, VERIFY = "cdc_bootstrap_shop", "cdc_sync_shop", "cdc_verify_shop"
MONITOR = "cdc_monitor_shop"
WRONG_PASSWORD = "wr0ng-Pa55word"
FILE = """name: {name}
source: {{dsn: "{dsn}", publications: [{name}], {slot}: slotlake_{name}}}
lake: {{catalog: lake, uri: "sqlite:///lake-{name}.db", warehouse: "warehouse", namespace: {name}}}
airflow: {{schedule: {schedule}, verify: every_batch}}
monitor: {{schedule: null, warn_lag_seconds: 2, on_warning: "tests.e2e.warned:note"}}
tables: {{public.orders: {{}}, public.log: {{}}}}
"""


@dataclass
class Stack:
    """Everything a test needs to act and to look."""

    airflow: LocalAirflow
    client: AirflowClient
    database: psycopg.Connection[Any]
    file: Path
    passwords: list[str]
    warned: Path

    def rows(self, table: str, namespace: str = "shop") -> list[tuple[str | None, ...]]:
        with Pipeline.open(self.file) as pipeline:
            return sorted(Cut.latest(replace(pipeline.lake, namespace=namespace)).rows(table))

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
        run = self.client.trigger(SYNC)
        assert _ended(self, SYNC, run) == "success", self.client.reason(SYNC, run)
        return run


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The machine's Chromium, or Debian's; where neither can be had the tests are skipped, saying why."""
    try:
        chromium = find_chromium(fetch=not os.environ.get("SLOTLAKE_OFFLINE"))
        chromium.version()
    except SetupError as error:
        pytest.skip(f"no browser: {error}")
    with open_browser(chromium) as opened:
        yield opened


@pytest.fixture(scope="module")
def stack(pg: EmbeddedPostgres, connect: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("airflow")
    with psycopg.connect(pg.dsn(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE airflow_shop")
    database = psycopg.connect(pg.dsn("airflow_shop"), autocommit=True)
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, v text); CREATE TABLE log (id int, v text)")
    database.execute("INSERT INTO orders SELECT g, 'v' || g FROM generate_series(1, 100) g")
    files = _pipeline_files(folder / "pipelines", pg)
    airflow = LocalAirflow(
        folder / "home",
        CHECKOUT / "dags",
        environment={
            "SLOTLAKE_PIPELINES": str(folder / "pipelines"),
            "SLOTLAKE_TEST_WARNED": str(folder / "warned"),
            "SLOTLAKE_SPARK_REMOTE": connect,
            **{name: value for name, value in os.environ.items() if name.startswith("SPARK_CONNECT")},
        },
        pools={"slotlake_slotlake_shop": 1, "slotlake_slotlake_wrong": 1},
        preload=["infra.local.airflow_warm"],
        dies_with_parent=True,
    )
    try:
        client = airflow.start().wait_ready()
        yield Stack(
            airflow, client, database, files["shop"], [pg.password, WRONG_PASSWORD], folder / "warned"
        )
        airflow.stop()
        assert airflow.members() == set()
        assert airflow.metadata.pid() is None
    finally:
        airflow.remove()
        database.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE database = 'airflow_shop' AND NOT active"
        )
        database.close()


def _pipeline_files(folder: Path, pg: EmbeddedPostgres) -> dict[str, Path]:
    right = pg.url("airflow_shop")
    wrong = right.replace(pg.password, WRONG_PASSWORD)
    texts = {
        "shop": FILE.format(name="shop", dsn=right, slot="slot", schedule=4),
        "wrong": FILE.format(name="wrong", dsn=wrong, slot="slot", schedule="null"),
        "odd": FILE.format(name="odd", dsn=right, slot="slott", schedule="null"),
    }
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    return {name: folder / f"{name}.yaml" for name in texts}


def test_a_wrong_pipeline_file_takes_away_its_own_dags_only(stack: Stack) -> None:
    kinds = ("bootstrap", "sync", "verify")
    stack.client.wait_dags([f"cdc_{kind}_{name}" for kind in kinds for name in ("shop", "wrong")])
    assert not any(dag.endswith("_odd") for dag in stack.client.dags())
    give_up = time.monotonic() + 60
    while not (errors := stack.client.import_errors()) and time.monotonic() < give_up:
        time.sleep(0.5)
    assert [error["filename"] for error in errors] == ["cdc_pipeline_files.py"]
    assert "odd.yaml" in errors[0]["stack_trace"]
    assert "source.slott" in errors[0]["stack_trace"]
    assert "Traceback" not in errors[0]["stack_trace"]


def test_the_ui_answers(stack: Stack) -> None:
    page = stack.client.page("/")
    assert '<div id="root"' in page
    scripts = re.findall(r'<script[^>]+src="\.?(/[^"]+)"', page)
    assert scripts
    assert all(len(stack.client.page(script)) > 10_000 for script in scripts)


def test_bootstrap_copies_and_may_be_cleared(stack: Stack) -> None:
    stack.client.pause(BOOTSTRAP, False)
    run = stack.client.trigger(BOOTSTRAP)
    assert _ended(stack, BOOTSTRAP, run) == "success", stack.client.reason(BOOTSTRAP, run)
    assert stack.equal()
    position = stack.position()
    _run_again(stack, BOOTSTRAP, run, ["bootstrap"], attempt=2)
    assert stack.client.xcoms(BOOTSTRAP, run)["bootstrap", "return_value"]["already"] is True
    assert stack.position() == position


def test_the_schedule_carries_changes_and_each_batch_is_verified(stack: Stack) -> None:
    stack.client.pause(VERIFY, False)
    stack.client.pause(SYNC, False)
    for number in (1000, 2000):
        stack.database.execute(
            f"INSERT INTO orders VALUES ({number}, 'new'); UPDATE orders SET v = 'u' WHERE id < 10; "
            f"INSERT INTO log VALUES ({number}, NULL); DELETE FROM orders WHERE id = {number // 100}"
        )
        _until(stack.equal, "the lake is equal to the source", stack)
    _until(lambda: len(_successes(stack)) >= 2, "two runs have ended", stack)
    assert {run["run_type"] for run in _successes(stack)} == {"scheduled"}
    stack.client.pause(SYNC, True)
    _until(lambda: _verified(stack), "all events are verified", stack)


def _successes(stack: Stack) -> list[dict[str, Any]]:
    return [run for run in stack.client.runs(SYNC) if run["state"] == "success"]


def _verified(stack: Stack) -> bool:
    """Does a successful run of cdc_verify cover the newest event?"""
    newest = stack.client.asset_events()[-1]
    assert set(newest["extra"]) == {"start_lsn", "end_lsn", "batch"}
    runs = newest["created_dagruns"]
    if not runs or runs[-1]["state"] != "success":
        assert not any(run["state"] == "failed" for run in runs)
        return False
    report = stack.client.xcoms(VERIFY, runs[-1]["run_id"])["verify", "return_value"]
    assert report["equal"] is True
    assert report["tables"]["public.orders"]["lake_rows"] == len(stack.rows("public.orders"))
    return True


def test_an_idle_run_skips_what_has_nothing_to_do(stack: Stack) -> None:
    stack.client.pause(SYNC, False)
    stack.client.pause(VERIFY, True)
    for _ in range(5):
        run = stack.sync()
        pulled = stack.client.xcoms(SYNC, run)["pull", "return_value"]
        if pulled["batch"] is None:
            break
    states = {name: task["state"] for name, task in stack.client.tasks(SYNC, run).items()}
    skipped = dict.fromkeys(("apply", "publish", "replay"), "skipped")
    assert states == {"pull": "success", "confirm": "success", **skipped}


def test_clearing_publish_or_all_changes_nothing(stack: Stack) -> None:
    stack.client.pause(SYNC, False)
    run = _carried(stack, "UPDATE orders SET v = 'cleared' WHERE id = 50")
    points = stack.points()
    assert stack.equal()
    _run_again(stack, SYNC, run, ["publish"], attempt=2)
    published = stack.client.xcoms(SYNC, run)["publish", "return_value"]
    assert published["already_published"] is True
    _run_again(stack, SYNC, run, ["pull", "confirm"], attempt=2, everything=True)
    assert stack.points() == points
    assert stack.equal()


def test_two_runs_at_once_both_end_well(stack: Stack) -> None:
    stack.database.execute("INSERT INTO orders SELECT g, 'two' FROM generate_series(5000, 5100) g")
    runs = [stack.client.trigger(SYNC) for _ in range(2)]
    assert [_ended(stack, SYNC, run) for run in runs] == ["success", "success"]
    assert stack.equal()


def test_the_monitor_fails_and_calls_back_while_sync_is_paused(stack: Stack) -> None:
    """It does not wait for the pool's one place, which something else may hold for ever."""
    stack.client.pause(SYNC, True)
    stack.client.pause(MONITOR, False)
    stack.database.execute("INSERT INTO orders VALUES (9000, 'nobody takes it')")
    time.sleep(3)
    run = stack.client.trigger(MONITOR)
    assert _ended(stack, MONITOR, run) == "failed"
    watch = stack.client.tasks(MONITOR, run)["watch"]
    assert (watch["try_number"], watch["pool"]) == (1, "default_pool")
    reason = stack.client.reason(MONITOR, run)
    assert "cdc_sync_shop is paused" in reason
    assert "its slot goes on holding WAL" in reason
    assert "is paused" in stack.warned.read_text()
    stack.client.pause(SYNC, False)


def test_a_source_that_refuses_fails_the_task_at_once_with_its_reason(stack: Stack) -> None:
    dag = "cdc_bootstrap_wrong"
    stack.client.pause(dag, False)
    run = stack.client.trigger(dag)
    assert _ended(stack, dag, run) == "failed"
    assert stack.client.tasks(dag, run)["bootstrap"]["try_number"] == 1
    reason = stack.client.reason(dag, run)
    assert "password" in reason
    assert "what to do:" in reason


BY_A_PERSON = pytest.mark.skipif(
    not os.environ.get("SLOTLAKE_TEST_BROWSER"),
    reason="other tests' micro-batches come in between in a whole run; SLOTLAKE_TEST_BROWSER=1 runs it",
)


@BY_A_PERSON
def test_a_person_backfills_with_the_form(stack: Stack, browser: Browser, connect: str) -> None:
    """Log in, fill the form, trigger, watch it turn green, see the result; a dry run, then the real one."""
    dag = "cdc_backfill_shop"
    stack.client.pause(SYNC, False)
    _until(stack.equal, "the lake has all changes", stack)
    _settled(stack)
    _damage(stack, connect)
    stack.client.pause(dag, False)
    browser.go(f"{stack.airflow.url}/")
    browser.wait_text("Username")
    browser.click("input[name=username]")
    browser.type("admin")
    browser.click("input[name=password]")
    browser.type(stack.airflow.password)
    browser.click("button", "Sign in")
    browser.wait_text("Dags", "Assets")
    run = _fill_and_trigger(stack, browser, dag, dry_run=True)
    report = stack.client.xcoms(dag, run)["backfill", "return_value"]
    assert (report["inserted"], report["changed"], report["deleted"]) == (1, 1, 0)
    keys = [(entry["change"], entry["key"]) for entry in report["tables"][0]["keys"]]
    assert keys == [("insert", {"id": "21"}), ("update", {"id": "20"})]
    assert not stack.equal()
    browser.go(f"{stack.airflow.url}/dags/{dag}/runs/{run}/tasks/backfill/xcom")
    browser.wait_text("return_value", "{")  # the page folds its value
    run = _fill_and_trigger(stack, browser, dag, dry_run=False)
    assert stack.client.xcoms(dag, run)["backfill", "return_value"]["changed"] == 1
    assert stack.equal()


def _settled(stack: Stack, seconds: float = 8.0) -> Any:
    """The lake's points, once none has come for a while. Not paused: then a run under way would not end."""
    seen, since = stack.points(), time.monotonic()

    def quiet() -> bool:
        nonlocal seen, since
        if stack.points() != seen:
            seen, since = stack.points(), time.monotonic()
        return time.monotonic() - since > seconds

    _until(quiet, "no more points come", stack)
    return seen


def _damage(stack: Stack, connect: str) -> None:
    with Pipeline.open(stack.file, remote=connect) as pipeline:
        pipeline.session.sql("UPDATE lake.shop.orders SET v = 'wrong' WHERE id = 20").collect()
        pipeline.session.sql("DELETE FROM lake.shop.orders WHERE id = 21").collect()


def _fill_and_trigger(stack: Stack, browser: Browser, dag: str, *, dry_run: bool) -> str:
    """As a person does; the id of the run, which has ended well, and been seen to."""
    known = {run["dag_run_id"] for run in stack.client.runs(dag)}
    browser.go(f"{stack.airflow.url}/dags/{dag}")
    browser.click("button", "Trigger")
    browser.wait_text("Tables", "Dry run")
    browser.click('input[aria-label^="Select one or mult"]')
    browser.wait_text("public.log", "public.orders")
    browser.click("[role=option]", "public.orders")
    browser.click("input[name=element_where]")
    browser.type("id BETWEEN 10 AND 30")
    if dry_run:
        browser.click("label:has(input[name=element_dry_run])")
        _picture(browser, "backfill-2-form")
    browser.click("[data-testid=trigger-dag-submit]")

    def mine() -> list[str]:
        return [run["dag_run_id"] for run in stack.client.runs(dag) if run["dag_run_id"] not in known]

    _until(lambda: bool(mine()), "the form has made a run", stack)
    (run,) = mine()
    browser.go(f"{stack.airflow.url}/dags/{dag}/runs/{run}")
    assert _ended(stack, dag, run) == "success", stack.client.reason(dag, run)
    browser.wait_text("Success")
    browser.go(f"{stack.airflow.url}/dags/{dag}/runs/{run}")  # as it is now, the task's row too
    browser.wait_text("Success", "1 Task Instance")
    if dry_run:
        _picture(browser, "backfill-3-green")
    return run


def _picture(browser: Browser, name: str) -> None:
    """For docs/backfill.md, if somebody asks for pictures."""
    if folder := os.environ.get("SLOTLAKE_PICTURES"):
        browser.picture(Path(folder) / f"{name}.png")


@BY_A_PERSON
def test_a_wrong_condition_fails_the_task_at_once(stack: Stack) -> None:
    dag = "cdc_backfill_shop"
    run = stack.client.trigger(dag, {"tables": ["public.orders"], "where": "no_such > 1"})
    assert _ended(stack, dag, run) == "failed"
    assert stack.client.tasks(dag, run)["backfill"]["try_number"] == 1
    assert 'column "no_such" does not exist' in stack.client.reason(dag, run)


@BY_A_PERSON
def test_the_backfill_button_replays_a_range_into_scratch_tables(stack: Stack, browser: Browser) -> None:
    """The form is looked at in the browser; the range is given through the API, which the button calls."""
    browser.go(f"{stack.airflow.url}/dags/{SYNC}")
    browser.click("button", "Trigger")
    browser.wait_text("Run this Dag for a range of dates")
    browser.click("label:has(input[value=backfill])")
    browser.wait_text("Scratch namespace", "Run Backfill")
    _picture(browser, "backfill-5-range")
    now = stack.database.execute("SELECT clock_timestamp()").fetchone()
    assert now is not None
    stack.database.execute("UPDATE orders SET v = 'replayed' WHERE id = 40")
    stack.client.pause(SYNC, False)
    _until(stack.equal, "the lake has the change", stack)
    points, start = _settled(stack), now[0] - timedelta(seconds=2)
    for _ in range(2):  # twice is as once
        _replayed(stack, start)
        assert stack.points() == points
        assert stack.rows("public.orders", "trial") == stack.rows("public.orders")


def _replayed(stack: Stack, start: datetime) -> None:
    """Two logical dates, to their end."""
    form = {"scratch_namespace": "trial"}
    backfill = stack.client.backfill(SYNC, start, start + timedelta(seconds=4), form)
    _until(lambda: _all_ended(stack, backfill), "the backfill has ended", stack)


def _all_ended(stack: Stack, backfill: int) -> bool:
    """Have all runs of a backfill ended well, each with a replay alone?"""
    if stack.client.call("GET", f"/backfills/{backfill}")["completed_at"] is None:
        return False
    runs = [run for run in stack.client.runs(SYNC) if run["run_type"] == "backfill"]
    assert len(runs) == 2
    for run in runs:
        states = {name: task["state"] for name, task in stack.client.tasks(SYNC, run["dag_run_id"]).items()}
        assert states.pop("replay") == "success", stack.client.reason(SYNC, run["dag_run_id"])
        assert set(states.values()) == {"skipped"}
    return True


def test_xcoms_hold_no_row_values(stack: Stack) -> None:
    for run in stack.client.runs(SYNC):
        pulled = stack.client.xcoms(SYNC, run["dag_run_id"]).get(("pull", "return_value"), {})
        assert set(pulled) <= {"batch", "start_lsn", "end_lsn", "transactions", "changes"}


def test_no_password_is_in_any_log_or_in_the_metadata(stack: Stack) -> None:
    logs = [path for path in stack.airflow.folder.rglob("*") if path.suffix == ".log"]
    assert len(logs) > 10
    secrets = [*stack.passwords, stack.airflow.password, stack.airflow.metadata.password]
    for path in logs:
        text = path.read_text(errors="replace")
        assert not [secret for secret in secrets if secret in text], path
    with psycopg.connect(stack.airflow.metadata.dsn()) as metadata:
        names = [
            row[0]
            for row in metadata.execute(
                "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'"
            ).fetchall()
        ]
        for name in names:
            for secret in secrets:
                found = metadata.execute(
                    f"SELECT count(*) FROM {name} t WHERE t::text LIKE %s", [f"%{secret}%"]
                ).fetchone()
                assert found == (0,), name


def _carried(stack: Stack, statement: str) -> str:
    """Execute a statement; the id of the run that carried it, be it the schedule's or one by hand."""
    before = {run["dag_run_id"] for run in _successes(stack)}
    stack.database.execute(statement)
    give_up = time.monotonic() + 240.0
    while time.monotonic() < give_up:
        for run in _successes(stack):
            name = run["dag_run_id"]
            if name not in before and stack.client.xcoms(SYNC, name)["pull", "return_value"]["batch"]:
                return str(name)
        time.sleep(0.5)
    raise AssertionError(f"no run carried: {statement}")


def _run_again(
    stack: Stack, dag: str, run: str, tasks: list[str], *, attempt: int, everything: bool = False
) -> None:
    """Clear tasks (or the whole run) and wait until these have run again: right after clearing, the run
    may still be called a success."""
    stack.client.clear(dag, run, None if everything else tasks)

    def done() -> bool:
        found = stack.client.tasks(dag, run)
        return all(found[t]["state"] == "success" and found[t]["try_number"] >= attempt for t in tasks)

    _until(done, f"{', '.join(tasks)} ran again", stack)
    assert _ended(stack, dag, run) == "success"


def _ended(stack: Stack, dag: str, run: str) -> str:
    return stack.client.wait_run(dag, run, seconds_max=240.0)


def _until(true: Any, what: str, stack: Stack, seconds_max: float = 240.0) -> None:
    give_up = time.monotonic() + seconds_max
    while not true():
        failed = [run["dag_run_id"] for run in stack.client.runs(SYNC) if run["state"] == "failed"]
        assert not failed, stack.client.reason(SYNC, failed[0])
        assert time.monotonic() < give_up, f"not so after {seconds_max:.0f} s: {what}"
        time.sleep(0.5)
