"""The DAGs on a real scheduler, driven through the REST API as a person would click.

One Airflow, one Spark Connect server and one database serve the whole module; its tests build on each other
and run in order.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import SetupError
from slotlake.infra.launch.folders import CHECKOUT
from slotlake.infra.local.airflow import LocalAirflow
from slotlake.infra.local.airflow_client import AirflowClient
from slotlake.infra.local.postgres import EmbeddedPostgres
from tests.e2e.airflow_clean_up import check_clean_up
from tests.e2e.airflow_pages import fill_backfill_form, log_in, picture, press_backfill
from tests.e2e.airflow_stack import Stack
from tests.e2e.browser import HEIGHT, WIDTH, Browser, open_browser
from tests.e2e.chromium import find_chromium

pytestmark = pytest.mark.airflow
LONG = pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")

BOOTSTRAP, SYNC, VERIFY = "cdc_bootstrap_shop", "cdc_sync_shop", "cdc_verify_shop"
MONITOR = "cdc_monitor_shop"
BY_HAND = ("bootstrap", "backfill", "maintenance", "recover")
WRONG_PASSWORD = "wr0ng-Pa55word"
HIDDEN = [
    f"h1dden-{what}" for what in ("catalog", "user", "token", "credential", "storage", "header", "remote")
]
OUT_OF_REACH = {  # catalogs that do not answer, and all that may be secret of them
    "jdbc": '"postgresql+psycopg://lake:h1dden-catalog@127.0.0.1:1/lake"',
    "rest": '"http://lake:h1dden-user@127.0.0.1:1/api", rest: {token: h1dden-token, '
    'credential: "id:h1dden-credential", s3.secret-access-key: h1dden-storage, '
    'header.authorization: "Bearer h1dden-header"}',
}
FILE = """name: {name}
source: {{dsn: "{dsn}", publications: [{name}], {slot}: slotlake_{name}}}
lake: {{catalog: lake, uri: "sqlite:///lake-{name}.db", warehouse: "warehouse", namespace: {name}}}
airflow: {{schedule: {schedule}, verify: every_batch}}
monitor: {{schedule: null, warn_lag_seconds: 2, on_warning: "tests.e2e.warned:note"}}
tables: {{public.orders: {{}}, public.log: {{}}}}
"""


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
    """The pipeline ``shop``, whose micro-batches come every four seconds once they are switched on."""
    folder = tmp_path_factory.mktemp("airflow")
    databases = {name: _database(pg, f"airflow_{name}") for name in ("shop", "desk")}
    files = _pipeline_files(folder / "pipelines", pg)
    airflow = LocalAirflow(
        folder / "home",
        CHECKOUT / "dags",
        environment={
            "SLOTLAKE_PIPELINES": str(folder / "pipelines"),
            "SLOTLAKE_TEST_WARNED": str(folder / "warned"),
            "SLOTLAKE_SPARK_REMOTE": connect,
            "SLOTLAKE_SHOW_KEYS": "1",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,reader:viewer",
            **{name: value for name, value in os.environ.items() if name.startswith("SPARK_CONNECT")},
        },
        pools={f"slotlake_slotlake_{name}": 1 for name in files},
        dies_with_parent=True,
    )
    try:
        client = airflow.start().wait_ready()
        secrets, warned = [pg.password, WRONG_PASSWORD, *HIDDEN], folder / "warned"
        yield Stack("shop", airflow, client, databases["shop"], files["shop"], secrets, warned)
        airflow.stop()
        assert airflow.members() == set()
        assert airflow.metadata.pid() is None
    finally:
        airflow.remove()
        for database in databases.values():
            database.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                "WHERE database = current_database() AND NOT active"
            )
            database.close()


def _database(pg: EmbeddedPostgres, name: str) -> psycopg.Connection[Any]:
    with psycopg.connect(pg.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    database = psycopg.connect(pg.dsn(name), autocommit=True)
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, v text); CREATE TABLE log (id int, v text)")
    database.execute("INSERT INTO orders SELECT g, 'v' || g FROM generate_series(1, 100) g")
    return database


@pytest.fixture(scope="module")
def desk(stack: Stack, pg: EmbeddedPostgres) -> Iterator[Stack]:
    """Another pipeline on the same Airflow: nothing comes by itself between a test's steps."""
    with psycopg.connect(pg.dsn("airflow_desk"), autocommit=True) as database:
        made = replace(stack, name="desk", file=stack.file.with_name("desk.yaml"), database=database)
        made.client.wait_dags([made.dag(kind) for kind in BY_HAND])
        for kind in BY_HAND:
            made.client.pause(made.dag(kind), False)
        made.done("bootstrap")
        yield made


def _pipeline_files(folder: Path, pg: EmbeddedPostgres) -> dict[str, Path]:
    right = pg.url("airflow_shop")
    wrong = right.replace(pg.password, WRONG_PASSWORD)
    texts = {
        "shop": FILE.format(name="shop", dsn=right, slot="slot", schedule=4),
        "wrong": FILE.format(name="wrong", dsn=wrong, slot="slot", schedule="null"),
        "desk": FILE.format(name="desk", dsn=pg.url("airflow_desk"), slot="slot", schedule=60),
        "odd": FILE.format(name="odd", dsn=right, slot="slott", schedule="null"),
    }
    for name, uri in OUT_OF_REACH.items():
        text = FILE.format(name=name, dsn=right, slot="slot", schedule="null")
        remote = 'spark: {remote: "sc://127.0.0.1:1/;token=h1dden-remote"}'
        texts[name] = text.replace(f'"sqlite:///lake-{name}.db"', uri) + remote + "\n"
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
    assert stack.ended("bootstrap", run) == "success", stack.client.reason(BOOTSTRAP, run)
    assert stack.equal()
    position = stack.position()
    stack.run_again("bootstrap", run, ["bootstrap"], attempt=2)
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
        stack.until(stack.equal, "the lake is equal to the source")
    stack.until(lambda: len(stack.successes()) >= 2, "two runs have ended")
    assert {run["run_type"] for run in stack.successes()} == {"scheduled"}
    stack.client.pause(SYNC, True)
    stack.until(lambda: _verified(stack), "all events are verified")


def _verified(stack: Stack) -> bool:
    """Does a successful run of cdc_verify cover the newest event?"""
    newest = stack.batch_events()[-1]
    assert {"start_lsn", "end_lsn", "batch"} < set(newest["extra"])
    assert newest["extra"]["tables"] == 2
    runs = newest["created_dagruns"]
    if not runs or runs[-1]["state"] != "success":
        assert not any(run["state"] == "failed" for run in runs)
        return False
    report = stack.client.xcoms(VERIFY, runs[-1]["run_id"])["verify", "return_value"]
    assert report["equal"] is True
    assert report["tables"]["public.orders"]["lake_rows"] == len(stack.rows("public.orders"))
    return True


def test_each_table_has_an_event_and_each_task_a_link(stack: Stack) -> None:
    batches = [event["extra"]["batch"] for event in stack.batch_events()]
    for table in ("orders", "log"):
        uri = f"slotlake://shop/public.{table}"
        events = [event for event in stack.client.asset_events() if event["uri"] == uri]
        assert [event["extra"]["batch"] for event in events] == batches
        assert {event["extra"]["table"] for event in events} == {f"public.{table}"}
    run = stack.successes()[0]["dag_run_id"]
    links = stack.client.call("GET", f"/dags/{SYNC}/dagRuns/{run}/taskInstances/pull/links")
    assert links["extra_links"] == {"slotlake": f"/slotlake/dag/{SYNC}"}


def test_an_idle_run_skips_what_has_nothing_to_do(stack: Stack) -> None:
    stack.client.pause(SYNC, False)
    stack.client.pause(VERIFY, True)
    for _ in range(5):
        run = stack.sync()
        pulled = stack.client.xcoms(SYNC, run)["pull", "return_value"]
        if pulled["batch"] is None:
            break
    states = {name: task["state"] for name, task in stack.client.tasks(SYNC, run).items()}
    skipped = dict.fromkeys(("apply", "publish"), "skipped")
    assert states == {"pull": "success", "confirm": "success", **skipped}
    tasks = stack.client.tasks(SYNC, run)
    assert {tasks[name]["pid"] for name in skipped} == {None}  # no process was started to skip them


def test_clearing_publish_or_all_changes_nothing(stack: Stack) -> None:
    stack.client.pause(SYNC, False)
    run = stack.carried("UPDATE orders SET v = 'cleared' WHERE id = 50")
    points = stack.points()
    assert stack.equal()
    stack.run_again("sync", run, ["publish"], attempt=2)
    published = stack.client.xcoms(SYNC, run)["publish", "return_value"]
    assert published["already_published"] is True
    stack.run_again("sync", run, ["pull", "confirm"], attempt=2, everything=True)
    assert stack.points() == points
    assert stack.equal()


def test_two_runs_at_once_both_end_well(stack: Stack) -> None:
    stack.database.execute("INSERT INTO orders SELECT g, 'two' FROM generate_series(5000, 5100) g")
    runs = [stack.client.trigger(SYNC) for _ in range(2)]
    assert [stack.ended("sync", run) for run in runs] == ["success", "success"]
    assert stack.equal()


def test_the_monitor_fails_and_calls_back_while_sync_is_paused(stack: Stack) -> None:
    """It does not wait for the pool's one place, which something else may hold for ever."""
    stack.client.pause(SYNC, True)
    stack.client.pause(MONITOR, False)
    stack.database.execute("INSERT INTO orders VALUES (9000, 'nobody takes it')")
    time.sleep(3)
    run = stack.client.trigger(MONITOR)
    assert stack.ended("monitor", run) == "failed"
    watch = stack.client.tasks(MONITOR, run)["watch"]
    assert (watch["try_number"], watch["pool"]) == (1, "default_pool")
    reason = stack.client.reason(MONITOR, run)
    assert "cdc_sync_shop is paused" in reason
    assert "its slot retains more and more WAL" in reason
    assert "is paused" in stack.warned.read_text()
    stack.client.pause(SYNC, False)


def test_a_source_that_refuses_fails_the_task_at_once_with_its_reason(stack: Stack) -> None:
    dag = "cdc_bootstrap_wrong"
    stack.client.pause(dag, False)
    run = stack.client.trigger(dag)
    assert stack.client.wait_run(dag, run) == "failed"
    assert stack.client.tasks(dag, run)["bootstrap"]["try_number"] == 1
    reason = stack.client.reason(dag, run)
    assert "password" in reason
    assert "what to do:" in reason


@pytest.mark.timeout(3600)  # it waits as long as something happens
@pytest.mark.parametrize("name", OUT_OF_REACH)
def test_what_is_secret_of_a_catalog_out_of_reach_is_not_told(stack: Stack, name: str) -> None:
    """Here by the log of the first attempt; at the end of the module by all that Airflow has kept."""
    dag, task = f"cdc_bootstrap_{name}", "bootstrap"
    stack.client.wait_dags([dag])
    stack.client.pause(dag, False)
    run = stack.client.trigger(dag)

    def tried() -> bool:
        return stack.client.tasks(dag, run)[task]["state"] in ("up_for_retry", "failed")

    replace(stack, name=name).until(tried, "the first attempt has failed")
    stack.client.call("PATCH", f"/dags/{dag}/dagRuns/{run}", {"state": "failed"})
    said = stack.client.log(dag, run, task)
    assert "127.0.0.1" in said
    assert not [secret for secret in HIDDEN if secret in said]


def test_a_person_backfills_with_the_form(desk: Stack, browser: Browser, connect: str) -> None:
    """Log in, fill the form, trigger, watch it turn green, see the result; a dry run, then the real one."""
    with Pipeline.open(desk.file, remote=connect) as pipeline:
        pipeline.session.sql("UPDATE lake.desk.orders SET v = 'wrong' WHERE id = 20").collect()
        pipeline.session.sql("DELETE FROM lake.desk.orders WHERE id = 21").collect()
    log_in(desk, browser)
    run = _fill_and_trigger(desk, browser, dry_run=True)
    report = desk.client.xcoms(desk.dag("backfill"), run)["backfill", "return_value"]
    assert (report["inserted"], report["changed"], report["deleted"]) == (1, 1, 0)
    keys = [(entry["change"], entry["key"]) for entry in report["tables"][0]["keys"]]
    assert keys == [("insert", {"id": "21"}), ("update", {"id": "20"})]
    assert not desk.equal()
    browser.go(f"{desk.airflow.url}/dags/{desk.dag('backfill')}/runs/{run}/tasks/backfill/xcom")
    browser.wait_text("return_value")
    browser.click("[data-testid=expand-all-button]")
    browser.wait_text('"change": "insert"', '"id": "21"')
    picture(browser, "backfill-4-result")
    run = _fill_and_trigger(desk, browser, dry_run=False)
    assert desk.client.xcoms(desk.dag("backfill"), run)["backfill", "return_value"]["changed"] == 1
    assert desk.equal()


def _fill_and_trigger(desk: Stack, browser: Browser, *, dry_run: bool) -> str:
    """As a person does; the id of the run, which has ended well, and been seen to."""
    dag = desk.dag("backfill")
    known = {run["dag_run_id"] for run in desk.client.runs(dag)}
    browser.go(f"{desk.airflow.url}/dags/{dag}")
    fill_backfill_form(browser, "public.orders", "id BETWEEN 10 AND 30", dry_run=dry_run)

    def mine() -> list[str]:
        return [run["dag_run_id"] for run in desk.client.runs(dag) if run["dag_run_id"] not in known]

    desk.until(lambda: bool(mine()), "the form has made a run")
    (run,) = mine()
    browser.go(f"{desk.airflow.url}/dags/{dag}/runs/{run}")
    assert desk.ended("backfill", run) == "success", desk.client.reason(dag, run)
    browser.wait_text("Success")
    browser.go(f"{desk.airflow.url}/dags/{dag}/runs/{run}")  # as it is now, the task's row too
    browser.wait_text("Success", "1 Task Instance")
    if dry_run:
        picture(browser, "backfill-3-green")
    return run


@LONG
def test_the_page_needs_a_user_and_shows_a_viewer_no_keys(desk: Stack, connect: str) -> None:
    with Pipeline.open(desk.file, remote=connect) as pipeline:
        pipeline.session.sql("UPDATE lake.desk.orders SET v = 'wrong' WHERE id = 77").collect()
        assert not pipeline.verify().equal
    desk.client.pause(desk.dag("monitor"), False)
    desk.ended("monitor", desk.client.trigger(desk.dag("monitor")))
    paths = ("/slotlake/", "/slotlake/pipeline/desk", "/slotlake/dag/cdc_verify_desk", "/slotlake/metrics")
    for path in paths:
        with pytest.raises(SetupError, match="401"):
            desk.client.page(path)
    admin, viewer = (_pages(desk, user, paths) for user in ("admin", "reader"))
    assert "id=77" in admin[1]
    assert "id=77" not in viewer[1]
    assert "id=•••" in viewer[1]
    docs = "/slotlake/pipeline/desk/data-docs/index.html"
    assert (docs in admin[1], docs in viewer[1]) == (True, False)
    assert "checks of the lake" in _pages(desk, "admin", [docs])[0]
    with pytest.raises(SetupError, match="403"):
        _pages(desk, "reader", [docs])
    with Pipeline.open(desk.file, remote=connect) as pipeline:
        pipeline.backfill("public.orders", where="id = 77")
    for pages in (admin, viewer):
        assert "1 row differs" in pages[0]
        assert pages[1].count("public.orders") >= 2
        assert 'slotlake_verify_equal{pipeline="desk"} 0' in pages[3]
        assert 'slotlake_table_rows{pipeline="desk",table="public.orders"}' in pages[3]


def _pages(desk: Stack, user: str, paths: Iterable[str]) -> list[str]:
    password = json.loads((desk.airflow.folder / "passwords.json").read_text())[user]
    client = AirflowClient(desk.airflow.url, user, password)
    client.call("GET", "/version")
    headers = {"Authorization": f"Bearer {client._token}"}
    return [client._send("GET", path, None, headers, 30.0).decode() for path in paths]


@LONG
def test_a_person_finds_the_page_in_the_navigation_and_on_a_dag(desk: Stack, browser: Browser) -> None:
    log_in(desk, browser)
    inside = "document.querySelector('iframe')?.contentDocument?.body?.innerText ?? ''"
    browser.go(f"{desk.airflow.url}/dags/{desk.dag('sync')}/plugin/slotlake-pipeline")
    browser._until(lambda: "Verifications" in browser.value(inside) or None, "the DAG's tab", 60.0)
    browser.go(f"{desk.airflow.url}/plugin/slotlake")
    browser._until(lambda: "the worst first" in browser.value(inside) or None, "the page", 60.0)
    picture(browser, "page-fleet")
    desk.client.pause(desk.dag("sync"), False)
    desk.carried("INSERT INTO log VALUES (1, 'a batch for the page')")
    desk.client.pause(desk.dag("sync"), True)
    browser.go(f"{desk.airflow.url}/slotlake/pipeline/desk")
    browser.click("a", "apply")  # the newest is the last that this finds
    browser.wait_text("INFO", "apply")  # Airflow's page with the log of that task
    browser.go(f"{desk.airflow.url}/slotlake/pipeline/desk")
    browser.wait_text("1 row differs", "id=77", "What recover would do")
    assert browser.value("document.querySelectorAll('path').length") >= 3  # retained WAL
    picture(browser, "page-pipeline")
    browser.resize(390, 844)
    browser.dark(True)
    assert browser.value("document.documentElement.scrollWidth") <= 390
    picture(browser, "page-phone")
    browser.dark(False)
    browser.resize(WIDTH, HEIGHT)


def test_a_wrong_condition_fails_the_task_at_once(desk: Stack) -> None:
    dag = desk.dag("backfill")
    run = desk.client.trigger(dag, {"tables": ["public.orders"], "where": "no_such > 1"})
    assert desk.ended("backfill", run) == "failed"
    assert desk.client.tasks(dag, run)["backfill"]["try_number"] == 1
    assert 'column "no_such" does not exist' in desk.client.reason(dag, run)


def test_the_backfill_button_replays_a_range_into_scratch_tables(
    desk: Stack, browser: Browser, connect: str
) -> None:
    changed = datetime.now(UTC)
    desk.database.execute("UPDATE orders SET v = 'replayed' WHERE id = 40")
    with Pipeline.open(desk.file, remote=connect) as pipeline:
        pipeline.sync(wait_seconds=120)
    points = desk.points()
    for _ in range(2):  # twice is as once
        backfill = press_backfill(desk, browser, changed - timedelta(minutes=1), changed)
        desk.until(partial(_all_ended, desk, backfill), "the backfill has ended")
        assert desk.points() == points
        assert desk.rows("public.orders", "trial") == desk.rows("public.orders") == desk.source("orders")
    desk.client.pause(desk.dag("sync"), True)


def _all_ended(desk: Stack, backfill: int) -> bool:
    """Have all runs of a backfill ended well, each with a replay in its first task alone?"""
    if desk.client.call("GET", f"/backfills/{backfill}")["completed_at"] is None:
        return False
    dag = desk.dag("sync")
    runs = [run["dag_run_id"] for run in desk.client.runs(dag) if run["run_type"] == "backfill"]
    replayed = 0
    for run in runs:
        states = {name: task["state"] for name, task in desk.client.tasks(dag, run).items()}
        replayed += states.pop("pull") == "success"
        assert set(states.values()) == {"skipped"}, desk.client.reason(dag, run)
    assert replayed >= 1
    return True


def test_maintenance_runs_beside_micro_batches(desk: Stack, connect: str) -> None:
    """They take turns with the pipeline's lock; readers, and the source, see no difference."""
    with Pipeline.open(desk.file, remote=connect) as pipeline:
        for number in range(3):
            desk.database.execute(
                f"DELETE FROM orders WHERE id BETWEEN {50 + number} AND {60 + number}; "
                f"UPDATE orders SET v = 'm{number}' WHERE id < 30; INSERT INTO log VALUES ({number}, 'm')"
            )
            pipeline.sync(wait_seconds=120)  # a DAG's run may be at its end
    desk.client.pause(desk.dag("sync"), False)
    desk.database.execute("UPDATE orders SET v = 'meanwhile' WHERE id = 1")
    sync = desk.client.trigger(desk.dag("sync"))
    report = desk.result("maintenance")
    assert report["all_tables"] == 3
    assert {"shop", "commits"}.isdisjoint(report["left"])
    assert report["tables"]
    assert desk.ended("sync", sync) == "success"
    desk.until(desk.equal, "the lake has the change")
    desk.client.pause(desk.dag("sync"), True)


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_a_table_set_aside_leaves_its_runs_green_and_the_monitor_warns(desk: Stack) -> None:
    """The tasks' results and log name it, the other table is followed; corrected, a run brings it back."""
    sync, monitor = desk.dag("sync"), desk.dag("monitor")
    desk.client.pause(sync, False)
    desk.database.execute("CREATE CAST (bytea AS text) WITHOUT FUNCTION")  # any bytes
    desk.database.execute("ALTER TABLE log REPLICA IDENTITY FULL")
    run = desk.carried(
        r"INSERT INTO log VALUES (900, '\xfffe81'::bytea::text); UPDATE orders SET v = 'on' WHERE id = 70"
    )
    assert desk.ended("sync", run) == "success"
    told = desk.client.xcoms(sync, run)["pull", "return_value"]["set_aside"]
    assert list(told) == ["public.log"]
    assert "column 'v'" in told["public.log"]
    assert "table public.log is set aside" in desk.client.log(sync, run, "pull")
    assert desk.rows("public.orders") == desk.source("orders")
    desk.client.pause(monitor, False)
    warned = desk.client.trigger(monitor)
    assert desk.ended("monitor", warned) == "failed"
    reason = desk.client.reason(monitor, warned)
    assert "public.log is set aside" in reason
    assert "slotlake resume" in reason
    assert "public.log is set aside" in desk.warned.read_text()
    desk.database.execute("DELETE FROM log WHERE id = 900")

    def is_back() -> bool:  # that run may have no batch: its copy brings the lake to where the source is
        runs = [desk.client.xcoms(sync, run["dag_run_id"]) for run in desk.successes()]
        pulled = [each.get(("pull", "return_value")) or {} for each in runs]
        return any("public.log" in each.get("resumed", ()) for each in pulled)

    desk.until(is_back, "a run says that the table is followed again")
    desk.until(desk.equal, "both tables are followed")
    desk.client.pause(sync, True)


def test_recover_asks_a_person_before_it_changes_anything(desk: Stack) -> None:
    """The slot is gone, and what was written since is in no stream."""
    slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'slotlake_desk'"
    desk.drop_slot()
    desk.database.execute("DELETE FROM orders WHERE id = 2; INSERT INTO orders VALUES (700, 'unseen')")
    dry = desk.done("recover", {"dry_run": True})
    assert set(desk.states("recover", dry).values()) == {"skipped"}
    assert "1 thing is wrong, and this was a dry run" in desk.client.log(desk.dag("recover"), dry, "plan")
    assert desk.client.xcoms(desk.dag("recover"), dry)["plan", "return_value"]["plan"]
    rejected, asked = desk.asked()
    assert asked["subject"] == "Recover pipeline desk?"
    for part in ("does not exist", "write the rows that differ", "net effect", "about 2 rows, "):
        assert part in asked["body"], asked["body"]
    with pytest.raises(SetupError, match="403"):
        desk.answer(rejected, "Approve", user="reader")
    desk.answer(rejected, "Reject")
    assert desk.ended("recover", rejected) == "success"
    assert desk.states("recover", rejected) == {"plan": "success", "approve": "skipped", "recover": "skipped"}
    assert "admin rejected the plan" in desk.client.log(desk.dag("recover"), rejected, "approve").lower()
    assert desk.database.execute(slots).fetchone() == (0,)
    assert not desk.equal()
    approved, _ = desk.asked()
    desk.answer(approved, "Approve")
    assert desk.ended("recover", approved) == "success", desk.client.reason(desk.dag("recover"), approved)
    report = desk.client.xcoms(desk.dag("recover"), approved)["recover", "return_value"]
    assert report["carried_out"] is True
    assert desk.database.execute(slots).fetchone() == (1,)
    assert desk.equal()
    whole = desk.done("recover")
    assert desk.states("recover", whole) == {"plan": "success", "approve": "skipped", "recover": "skipped"}


@LONG
def test_a_person_approves_in_the_browser_and_another_plan_is_refused(desk: Stack, browser: Browser) -> None:
    dag = desk.dag("recover")
    desk.drop_slot()
    desk.database.execute("UPDATE orders SET v = 'lost' WHERE id = 90")
    run, _ = desk.asked()
    desk.database.execute("INSERT INTO orders SELECT g, 'since' FROM generate_series(20000, 22000) g")
    desk.answer(run, "Approve")
    assert desk.ended("recover", run) == "failed"
    assert desk.client.tasks(dag, run)["recover"]["try_number"] == 1
    assert "the plan is not the one that was approved: public.orders" in desk.client.reason(dag, run)
    assert not desk.equal()
    run, _ = desk.asked()
    log_in(desk, browser)
    browser.go(f"{desk.airflow.url}/dags/{dag}/runs/{run}/tasks/approve/required_actions")
    browser.wait_text("Recover pipeline desk?", "What is lost for good", "Approve", "Reject")
    picture(browser, "recover-approve")
    browser.click("button", "Approve")
    assert desk.ended("recover", run) == "success", desk.client.reason(dag, run)
    assert desk.equal()


def test_xcoms_hold_no_row_values(stack: Stack) -> None:
    for run in stack.client.runs(SYNC):
        pulled = stack.client.xcoms(SYNC, run["dag_run_id"]).get(("pull", "return_value"), {})
        assert set(pulled) <= {
            "batch",
            "start_lsn",
            "end_lsn",
            "transactions",
            "changes",
            "set_aside",
            "resumed",
        }


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


@LONG
def test_the_clean_up_of_the_page_leaves_nothing_old_and_the_pipeline_goes_on(stack: Stack) -> None:
    check_clean_up(stack)  # after the tests above, which look at what Airflow has kept
