"""The page in Airflow: nothing for a stranger, what each user may see, no scripts, and how long it takes."""

from __future__ import annotations

import importlib
import io
import logging
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from slotlake.expectations.results import Difference, Report, TableResult
from slotlake.infra.airflow.words import log_step, verify_lines
from slotlake.infra.cli.texts.work import verify_text
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.health.data_docs import data_docs
from slotlake.infra.health.model import PERIODS
from slotlake.infra.state.recorded import Recorded, in_store
from slotlake.infra.state.shared_journal import SharedJournal
from slotlake.infra.verify.verification import _write_docs, summary
from tests.infra.test_pages import EVIL, NOW, noted, pipeline
from tests.infra.test_shared_journal import Bucket, pipeline_file
from tests.prometheus import families

pytestmark = pytest.mark.seconds
ALL = "all"


class _AuthManager:
    """Airflow's, as far as the page asks it: a user is the set of DAGs that he may read."""

    def get_authorized_dag_ids(self, *, user: set[str]) -> set[str]:
        return user


def _requires(method: str, param_dag_id: str) -> Any:
    from fastapi import HTTPException

    def check(request: object, user: set[str]) -> None:
        if param_dag_id not in user or (method == "PUT" and ALL not in user):
            raise HTTPException(403, "Forbidden")

    return check


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The page's module; Airflow is imported with a home of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow-home")))
        return importlib.import_module("slotlake.infra.airflow.page")


@pytest.fixture
def app(page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The app with two pipelines, shop and desk."""
    for name in ("shop", "desk"):
        noted(pipeline(tmp_path, name), equal=name != "shop")
    monkeypatch.setenv("SLOTLAKE_PIPELINES", str(tmp_path))
    monkeypatch.setattr(page, "get_auth_manager", _AuthManager)
    monkeypatch.setattr(page, "requires_access_dag", _requires)
    made = page.make_app()
    made.state.page = page
    return made


def as_user(app: Any, *dags: str) -> Any:
    from fastapi.testclient import TestClient

    app.dependency_overrides[app.state.page.get_user] = lambda: set(dags)
    return TestClient(app)


def test_no_route_answers_a_stranger(app: Any) -> None:
    from fastapi.routing import APIRoute
    from fastapi.testclient import TestClient

    client = TestClient(app)
    paths = [route.path for route in app.routes if isinstance(route, APIRoute)]
    docs = "/pipeline/{name}/data-docs/{path:path}"
    assert paths == ["/", "/pipeline/{name}", docs, "/dag/{dag_id}", "/metrics"]
    assert len(app.routes) == len(paths)  # no description of itself either
    for path in paths:
        asked = path.replace(":path", "").format(name="shop", dag_id="cdc_sync_shop", path="index.html")
        answer = client.get(asked)
        assert (answer.status_code, "shop" in answer.text) == (401, False), path


def test_a_user_sees_the_pipelines_whose_dags_he_may_read(app: Any) -> None:
    client = as_user(app, "cdc_sync_desk")
    assert "desk" in client.get("/").text
    assert "shop" not in client.get("/").text
    assert set(_pipelines(client.get("/metrics").text)) == {"desk"}
    assert client.get("/pipeline/desk").status_code == 200
    for path in ("/pipeline/shop", "/dag/cdc_verify_shop", "/pipeline/nothing"):
        assert client.get(path).status_code == 403
    assert "no pipeline to show" in client.get("/dag/somebody_elses").text
    assert as_user(app, "cdc_sync_gone").get("/pipeline/gone").status_code == 404


def _pipelines(text: str) -> set[str]:
    return {sample.labels["pipeline"] for family in families(text).values() for sample in family.samples}


def test_keys_need_the_variable_and_the_right_to_change(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "4711" not in as_user(app, "cdc_sync_shop", ALL).get("/pipeline/shop").text
    monkeypatch.setenv("SLOTLAKE_SHOW_KEYS", "1")
    assert "4711" not in as_user(app, "cdc_sync_shop").get("/pipeline/shop").text
    assert "id=4711" in as_user(app, "cdc_sync_shop", ALL).get("/pipeline/shop").text


def test_data_docs_are_for_those_who_may_see_keys(
    app: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / ".slotlake" / "shop" / "expectations" / "gx/uncommitted/data_docs/local_site"
    (site / "validations").mkdir(parents=True)
    (site / "index.html").write_text("<p>all checks</p>")
    (site / "validations" / "1.html").write_text("<p>id=4711</p>")
    (site / "secret.json").write_text("{}")
    (site.parent / "outside.html").write_text("outside")
    docs = "/pipeline/shop/data-docs"
    assert "data-docs" not in as_user(app, "cdc_sync_shop", ALL).get("/pipeline/shop").text
    assert as_user(app, "cdc_sync_shop", ALL).get(f"{docs}/index.html").status_code == 403
    monkeypatch.setenv("SLOTLAKE_SHOW_KEYS", "1")
    assert as_user(app, "cdc_sync_shop").get(f"{docs}/index.html").status_code == 403
    assert "data-docs" not in as_user(app, "cdc_sync_shop").get("/pipeline/shop").text
    client = as_user(app, "cdc_sync_shop", ALL)
    assert "/slotlake/pipeline/shop/data-docs/index.html" in client.get("/pipeline/shop").text
    assert "all checks" in client.get(f"{docs}/index.html").text
    answer = client.get(f"{docs}/validations/1.html")
    assert "4711" in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for path in ("secret.json", "..%2Foutside.html", "%2Fetc%2Fpasswd", "validations", "no.html", ""):
        assert client.get(f"{docs}/{path}").status_code == 404, path


def test_the_data_docs_of_a_verification_are_named_and_shown(
    app: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Great Expectations' own pages: the command, the task's log and the page say where they are."""
    caplog.set_level(logging.INFO)
    file = load_pipeline(tmp_path / "shop.yaml")
    difference = Difference("different", {"id": "4711"}, ("v",))
    table = TableResult("public.t", 1, 1, {"different": 1}, (difference,))
    verified = Report("0/1A2B", {"public.t": table})
    verified = replace(verified, data_docs=_write_docs(file, file.name, verified))
    assert verified.data_docs == str(data_docs(file))
    assert verified.as_dict()["data_docs"] == verified.data_docs
    console = Console(width=200, record=True, file=io.StringIO())
    verify_text(verified, console)
    assert f"Data Docs: {verified.data_docs}" in console.export_text()
    log_step(verify_lines(summary(verified)))
    assert any(f"Data Docs: {verified.data_docs} on " in record.getMessage() for record in caplog.records)
    monkeypatch.setenv("SLOTLAKE_SHOW_KEYS", "1")
    client, here = as_user(app, "cdc_sync_shop", ALL), "/pipeline/shop/data-docs"
    index = client.get(f"{here}/index.html").text
    assert "checks of the lake" in index
    pages = re.findall(r'href="(validations/[^"]+)"', index)
    assert pages
    assert "public.t" in client.get(f"{here}/{pages[0]}").text


def test_the_policy_lets_one_script_run_and_nobody_else_frame_it(app: Any) -> None:
    answer = as_user(app, "cdc_sync_shop").get("/dag/cdc_sync_shop")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'self'" in policy
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    assert f'<style nonce="{nonce}">' in answer.text
    assert f"script-src 'nonce-{nonce}'; connect-src 'self'" in policy
    assert answer.text.count("<script") == answer.text.count(f'<script nonce="{nonce}">') == 1
    assert EVIL not in answer.text
    assert "/dags/cdc_sync_shop/runs/scheduled__2030" in answer.text
    assert (
        answer.text.count('/runs/scheduled__2030/tasks/apply" title="log of the task apply">apply</a>') == 15
    )
    assert answer.headers["cache-control"] == "no-store"


def test_a_hundred_pipelines_take_less_than_a_fifth_of_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: Any
) -> None:
    for number in range(100):
        noted(pipeline(tmp_path, f"p{number}"))
    client = as_user(app, *(f"cdc_sync_p{number}" for number in range(100)))
    client.get("/")  # reads the pipeline files
    noted(pipeline(tmp_path, "p7"))  # one has changed
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        answer = client.get("/")
        seconds.append(time.perf_counter() - began)
        assert answer.text.count('data-label="pipeline"') == 100
    assert min(seconds) < 0.2, seconds


@pytest.mark.parametrize("hangs", [False, True])
def test_a_hundred_pipelines_in_a_store_take_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: Any, hangs: bool
) -> None:
    """Each with a history of 19 segments; what hangs is shown as that."""
    released, buckets = threading.Event(), dict[str, Bucket]()
    for number in range(100):
        file = load_pipeline(pipeline_file(tmp_path, f"p{number}", f"s3://b{number % 3}/x"))
        buckets[file.name] = _history_of(Bucket())

    def read(known: Any) -> Recorded:
        if hangs and "s3://b1/" in str(known.file.state_bucket):
            released.wait(60)
        history = known.journal.read(buckets[known.file.name])
        return in_store(known.journal.look, history)

    monkeypatch.setattr("slotlake.infra.airflow.histories._read", read)
    client = as_user(app, *(f"cdc_sync_p{number}" for number in range(100)))
    known = app.state.read
    known.histories.recorded(known.pipelines()[1:], 20.0 if not hangs else 8.0)  # what answers is read
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        text = client.get("/").text
        seconds.append(time.perf_counter() - began)
        assert text.count('data-label="pipeline"') == 100
        assert text.count("being read from its object store") == (33 if hangs else 0)
    assert min(seconds) < 0.2, seconds
    one = client.get("/pipeline/p2").text
    assert one.count('<td data-label="queryable at">') == 15
    counted = client.get("/metrics").text.count("slotlake_batches_total{")
    assert counted == (67 if hangs else 100)  # a counter that is not known is not 0
    released.set()


def _history_of(bucket: Bucket) -> Bucket:
    for number in range(19):
        journal = SharedJournal(bucket)
        facts = {"transactions": 1, "changes": 5, "bytes": 9, "last_commit": NOW, "tables": {}}
        part = {"batch": f"b-{number}", "steps": {"pull": 0.5, "confirm": 0.1}, "first_commit": NOW}
        journal.add_part({**facts, **part, "time": NOW + number})
        journal.end()
    return bucket


def test_a_page_asks_neither_source_nor_lake(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a page must not connect")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("psycopg.connect", refuse)
    text = as_user(app, "cdc_sync_shop").get("/pipeline/shop").text
    assert all(f"shop-{period}" in text for period in PERIODS)


def test_the_plugin_names_its_views(page: Any) -> None:
    plugin = importlib.import_module("slotlake.infra.airflow.plugin").SlotlakePlugin
    assert [app["url_prefix"] for app in plugin.fastapi_apps] == ["/slotlake"]
    assert {view["destination"]: view["href"] for view in plugin.external_views} == {
        "nav": "/slotlake/",
        "dag": "/slotlake/dag/{DAG_ID}",
    }
