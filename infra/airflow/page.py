"""The page in Airflow: all pipelines, one pipeline, and their metrics, for those who may see their DAGs.

Every route needs a user of Airflow (a stranger gets 401). A pipeline is shown to those who may read its DAG
``cdc_sync_<name>``; keys of differing rows only to those who may change it, and only if the environment
variable SLOTLAKE_SHOW_KEYS is 1 in the API server. Invariant: a request reads pipeline files and journals
from disk, and asks neither source nor lake. Journals that are in an object store are read next to it.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse

from slotlake import VERSION
from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.airflow import scheduling
from slotlake.infra.airflow.base_path import base_path
from slotlake.infra.airflow.histories import Histories
from slotlake.infra.config.pipeline_file import PipelineFile, load_pipeline
from slotlake.infra.health.data_docs import data_docs, page_of
from slotlake.infra.health.html import Links, document
from slotlake.infra.health.metrics import CONTENT_TYPE, metrics_text
from slotlake.infra.health.model import Health, health_from, health_of

User = Annotated[Any, Depends(get_user)]
_SHOW_KEYS = "SLOTLAKE_SHOW_KEYS"
# How long a view, or Prometheus, waits for journals in object stores, if they answer; then older ones do.
_PAGE_SECONDS, _METRICS_SECONDS = 0.1, 2.0
_KINDS = ("bootstrap", "sync", "verify", "maintenance", "backfill", "monitor", "recover", "tables")


def make_app() -> FastAPI:
    """Return the app; none of its routes answers a stranger, and it describes itself to nobody."""
    app = FastAPI(
        title="slotlake",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(get_user)],
    )
    app.state.read = Read()
    app.get("/")(fleet)
    app.get("/pipeline/{name}")(pipeline)
    app.get("/pipeline/{name}/data-docs/{path:path}")(data_docs_page)
    app.get("/dag/{dag_id}")(dag)
    app.get("/metrics")(metrics)
    return app


def fleet(request: Request, user: User) -> HTMLResponse:
    """Show a row for each pipeline that the user may see."""
    return _page(request, _read(request).healths(_visible(request, user)), [], show_keys=False)


def pipeline(request: Request, name: str, user: User) -> HTMLResponse:
    """Show one pipeline.

    Raises:
        HTTPException: the user may not see it (403), or there is none (404).
    """
    requires_access_dag("GET", param_dag_id=sync_dag(name))(request, user)
    read = _read(request)
    file = next((file for file in read.pipelines() if file.name == name), None)
    known = read.healths([] if file is None else [file])
    if file is None or not known:
        raise HTTPException(404, "there is no such pipeline")
    return _page(request, [], [(known[0], file)], show_keys=_may_see_keys(request, name, user))


def data_docs_page(request: Request, name: str, path: str, user: User) -> HTMLResponse:
    """Show a page of Great Expectations' Data Docs, which have keys of differing rows.

    Args:
        path: of the page, from the folder of the index page on.

    Raises:
        HTTPException: the user may not see keys (403), or there is no such page (404).
    """
    requires_access_dag("GET", param_dag_id=sync_dag(name))(request, user)
    if not _may_see_keys(request, name, user):
        raise HTTPException(403, f"needs the right to change {sync_dag(name)}, and {_SHOW_KEYS}=1")
    file = next((file for file in _read(request).pipelines() if file.name == name), None)
    page = None if file is None else page_of(file, path)
    if page is None:
        raise HTTPException(404, "there is no such page")
    return HTMLResponse(page.read_bytes(), headers=_headers(_policy("style-src 'unsafe-inline'")))


def dag(request: Request, dag_id: str, user: User) -> HTMLResponse:
    """Show the pipeline of a DAG; of a DAG of others, nothing."""
    names = [
        file.name
        for file in _read(request).pipelines()
        if dag_id in {f"cdc_{kind}_{file.name}" for kind in _KINDS}
    ]
    return pipeline(request, names[0], user) if names else _page(request, [], [], show_keys=False)


def metrics(request: Request, user: User) -> Response:
    """Answer Prometheus, which comes with a token of Airflow's REST API."""
    known = _read(request).healths(_visible(request, user), _METRICS_SECONDS)
    return Response(metrics_text(known, VERSION), media_type=CONTENT_TYPE)


def sync_dag(name: str) -> str:
    """Return the DAG whose readers may see a pipeline."""
    return f"cdc_sync_{name}"


def _visible(request: Request, user: Any) -> list[PipelineFile]:
    readable = get_auth_manager().get_authorized_dag_ids(user=user)
    return [file for file in _read(request).pipelines() if sync_dag(file.name) in readable]


def _may_see_keys(request: Request, name: str, user: Any) -> bool:
    if os.environ.get(_SHOW_KEYS) != "1":
        return False
    try:
        requires_access_dag("PUT", param_dag_id=sync_dag(name))(request, user)
    except HTTPException:
        return False
    return True


def _page(
    request: Request, pipelines: list[Health], detailed: list[tuple[Health, PipelineFile]], *, show_keys: bool
) -> HTMLResponse:
    here = f"{base_path()}/slotlake"

    def run_page(dag_id: str, run: str) -> str:
        return f"{base_path()}/dags/{quote(dag_id)}/runs/{quote(run, safe='')}"

    def docs(file: PipelineFile) -> str | None:
        there = show_keys and data_docs(file) is not None
        return f"{here}/pipeline/{quote(file.name)}/data-docs/index.html" if there else None

    links = Links(
        pipeline=lambda name: f"{here}/pipeline/{quote(name)}",
        run=run_page,
        task=lambda dag_id, run, task: f"{run_page(dag_id, run)}/tasks/{quote(task, safe='')}",
        recover=lambda name: f"{base_path()}/dags/{quote(f'cdc_recover_{name}')}",
        fleet=f"{here}/" if detailed else None,
        data_docs=docs,
    )
    nonce = secrets.token_urlsafe(16)
    text = document(
        pipelines, detailed, version=VERSION, links=links, show_keys=show_keys, nonce=nonce, live=True
    )
    return HTMLResponse(text, headers=_headers(live_policy(nonce)))


def live_policy(nonce: str) -> str:
    """Return the policy of a page that reads itself again: its own style and script, and nothing else."""
    return _policy(f"style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'")


def _policy(own: str) -> str:
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"


def _headers(policy: str) -> dict[str, str]:
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


class Read:
    """What requests have read, by what the disk says of it: none parses a hundred unchanged files again."""

    def __init__(self) -> None:
        self.histories = Histories()
        self._files: dict[Path, tuple[object, PipelineFile | None]] = {}
        self._journals: dict[Path, tuple[object, Health]] = {}

    def pipelines(self) -> list[PipelineFile]:
        """The pipelines with a correct file, without dropped ones; of two with the same name, the first."""
        files: dict[str, PipelineFile] = {}
        for path in scheduling.pipeline_paths():
            file = self._file(path)
            if file is not None and file.name not in files and not file.dropped_note.exists():
                files[file.name] = file
        return list(files.values())

    def _file(self, path: Path) -> PipelineFile | None:
        signature = _signature(path)
        before = self._files.get(path)
        if before is None or before[0] != signature:
            try:
                before = (signature, load_pipeline(path))
            except PipelineFileError:  # dags/cdc_pipeline_files.py says what is wrong
                before = (signature, None)
            self._files[path] = before
        return before[1]

    def healths(self, files: list[PipelineFile], wait_seconds: float = _PAGE_SECONDS) -> list[Health]:
        """What is known of pipelines, without those that were dropped: a store knows that, no file here."""
        stored = [file for file in files if file.state_bucket is not None]
        recorded_ones = self.histories.recorded(stored, wait_seconds)
        known = dict(zip((file.name for file in stored), recorded_ones, strict=True))
        healths = []
        for file in files:
            if file.name not in known:
                healths.append(self._health(file))
            elif (recorded := known[file.name]) is not None:
                healths.append(health_from(file, recorded))
        return healths

    def _health(self, file: PipelineFile) -> Health:
        signature = [(entry, _signature(Path(entry))) for entry in _entries(file.state_dir / "journal")]
        before = self._journals.get(file.path)
        if before is None or before[0] != signature:
            before = self._journals[file.path] = (signature, health_of(file))
        return replace(before[1], now=time.time())


def _read(request: Request) -> Read:
    read: Read = request.app.state.read
    return read


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(entry.path for entry in os.scandir(folder))
    except OSError:
        return []


def _signature(path: Path) -> tuple[int, int] | None:
    try:
        known = path.stat()
    except OSError:
        return None
    return known.st_mtime_ns, known.st_size
