"""A real KubernetesExecutor, a real API server: each task is a pod of docs/workers.md's, two are killed.

There are no containers here: tests/kubernetes runs a pod as a process with a root, volumes and a user of its
own.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from slotlake import Pipeline
from slotlake.infra.launch.folders import CHECKOUT
from slotlake.infra.local.airflow_client import AirflowClient
from slotlake.infra.local.object_store import LocalObjectStore
from tests.catalogs import postgres_uri
from tests.conftest import ROOT, Database, fresh_database
from tests.e2e.airflow_workers import airflow_without_workers, until, until_ended
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.kubernetes.kubelet import NODES, Kubelet
from tests.kubernetes.pods import Image
from tests.kubernetes.server import ApiServer, programs
from tests.provider_packages import executor_packages
from tests.storage import moved_to
from tests.workers import needs_namespaces

pytestmark = [pytest.mark.timeout(2400), pytest.mark.airflow, needs_namespaces]
LONG = pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
TABLES = ["orders", "lines"]
NAMESPACE = "data"
USER = 50000
_SYNC = "cdc_sync_shop"
_LOCKED = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE application_name = 'slotlake lock' AND datname = current_database()"
)


def template() -> dict[str, Any]:
    """Return the pod that docs/workers.md shows."""
    page = (ROOT / "docs" / "workers.md").read_text()
    (text,) = re.findall(r"```yaml\n(apiVersion: v1\nkind: Pod\n.*?)```", page, re.DOTALL)
    return dict(yaml.safe_load(text))


def _template_for(client_url: str, connect: str) -> dict[str, Any]:
    """The page's template, with the addresses of this machine, and what the image says elsewhere."""
    pod = template()
    (container,) = pod["spec"]["containers"]
    here = {
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{client_url}/execution/",
        "SLOTLAKE_SPARK_REMOTE": connect,
        "AIRFLOW__CORE__DAGS_FOLDER": str(CHECKOUT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        **{name: value for name, value in os.environ.items() if name.startswith("SPARK_CONNECT")},
    }
    kept = [each for each in container["env"] if each["name"] not in here]
    container["env"] = [*kept, *({"name": name, "value": value} for name, value in here.items())]
    return pod


def _prepare(server: ApiServer, file: Path, dsn: str) -> None:
    """A namespace whose pods must be harmless, with the pipeline file, the secret, and Airflow's right."""
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    space = f"/api/v1/namespaces/{NAMESPACE}"
    rights = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
    server.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": label}})
    server.call("POST", f"{space}/serviceaccounts", {"metadata": {"name": "default"}})
    files = {"shop.yaml": file.read_text().replace(f'"{dsn}"', "env:SHOP_DSN")}
    server.call("POST", f"{space}/configmaps", {"metadata": {"name": "slotlake-pipelines"}, "data": files})
    secret = {"dsn": base64.b64encode(dsn.encode()).decode()}
    server.call("POST", f"{space}/secrets", {"metadata": {"name": "shop-source"}, "data": secret})
    verbs = ["create", "get", "list", "watch", "patch", "delete"]  # docs/workers.md
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": verbs}
    server.call("POST", f"{rights}/roles", {"metadata": {"name": "launcher"}, "rules": [rule]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "launcher"}
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "airflow"}
    binding = {"metadata": {"name": "launcher"}, "roleRef": role, "subjects": [user]}
    server.call("POST", f"{rights}/rolebindings", binding)


@dataclass(frozen=True)
class Shop:
    """The pipeline file, and the database of the catalog, which has the lock too."""

    file: Path
    catalog: Database

    def locked(self) -> bool:
        """Whether a step is at work."""
        return bool(self.catalog.execute(_LOCKED)[0][0])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    programs()
    with ApiServer(tmp_path / "kubernetes", users=("airflow",)) as made:
        yield made


@pytest.fixture
def shop(database: Database, pg: Any, object_store: LocalObjectStore, tmp_path: Path) -> Iterator[Shop]:
    """A pipeline with all that outlives a pod in a bucket and a PostgreSQL."""
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text); CREATE TABLE lines (id int PRIMARY KEY, v text);"
        "INSERT INTO orders SELECT g, 'v' || g FROM generate_series(1, 2000) g"
    )
    with fresh_database(pg) as catalog:
        place = f"{object_store.warehouse}-kubernetes/{secrets.token_hex(4)}"
        shared = f"changelog: {{path: '{place}'}}\nstate: {{path: '{place}'}}\n"
        options = "airflow: {schedule: null, verify: manual, maintenance: null}\nmonitor: {schedule: null}\n"
        file = pipeline_file(
            tmp_path / "files", database, TABLES, uri=postgres_uri(catalog), extra=shared + options
        )
        moved_to(object_store, file)
        yield Shop(file, catalog)


@LONG
def test_each_task_is_a_pod_and_two_of_them_are_killed(
    server: ApiServer, database: Database, shop: Shop, connect: str, tmp_path: Path
) -> None:
    _prepare(server, shop.file, database.dsn)
    image = Image.of_this_machine(tmp_path, USER, executor_packages())
    pod_file = tmp_path / "pod.yaml"
    environment = _environment(server, shop.file, pod_file, connect)
    with ExitStack() as stack:
        client = stack.enter_context(airflow_without_workers(tmp_path / "home", shop.file, environment))
        pod_file.write_text(yaml.safe_dump(_template_for(client.url, connect)))
        kubelet = stack.enter_context(Kubelet(server, NAMESPACE, image, tmp_path / "pods"))
        for dag in ("cdc_bootstrap_shop", _SYNC):
            client.wait_dags([dag])
            client.pause(dag, False)
        run = client.trigger("cdc_bootstrap_shop")
        until_ended(client, "cdc_bootstrap_shop", run, kubelet.log)
        database.execute("UPDATE orders SET v = 'new' WHERE id % 3 = 0; INSERT INTO lines VALUES (1, 'a')")
        hosts = _one_task_killed(client, kubelet, "apply", shop.locked, kubelet.kill)
        assert len(set(hosts.values())) == len(hosts) == 4, "each task had a pod of its own"
        assert {kubelet.nodes[host] for host in hosts.values()} == set(NODES)
        database.execute("DELETE FROM orders WHERE id % 5 = 0; INSERT INTO lines VALUES (2, 'b')")
        _one_task_killed(client, kubelet, "publish", lambda: True, kubelet.evict)
        with Pipeline.open(shop.file, remote=connect) as pipeline:
            assert_equal(database, pipeline, TABLES)
        assert kubelet.error is None
        # Airflow removes pods, but keeps those that failed for who looks into them.
        until(lambda: {pod["status"]["phase"] for pod in kubelet.pods()} <= {"Failed"}, kubelet.log)


def _one_task_killed(
    client: AirflowClient,
    kubelet: Kubelet,
    task: str,
    at_work: Callable[[], bool],
    kill: Callable[[str], None],
) -> dict[str, str]:
    """A sync whose task is killed once while it works; return the pods of its tasks."""
    run = client.trigger(_SYNC)

    def now() -> Mapping[str, Any]:
        return client.tasks(_SYNC, run)[task]

    until(
        lambda: now()["state"] == "running" and at_work(),
        lambda: f"{client.reason(_SYNC, run)}\n{kubelet.log()}",
    )
    killed = now()["hostname"]
    kill(killed)
    tasks = until_ended(client, _SYNC, run, kubelet.log)
    assert tasks[task]["try_number"] >= 2
    assert tasks[task]["hostname"] != killed
    return {name: each["hostname"] for name, each in tasks.items()}


def _environment(server: ApiServer, file: Path, pod_file: Path, connect: str) -> dict[str, str]:
    paths = [str(CHECKOUT / "src"), str(CHECKOUT), str(executor_packages())]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "AIRFLOW__CORE__EXECUTOR": "KubernetesExecutor",
        "AIRFLOW__KUBERNETES_EXECUTOR__NAMESPACE": NAMESPACE,
        "AIRFLOW__KUBERNETES_EXECUTOR__POD_TEMPLATE_FILE": str(pod_file),
        "AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
        "AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": str(server.kubeconfig("airflow", NAMESPACE)),
        "SLOTLAKE_PIPELINES": str(file),
        "SLOTLAKE_SPARK_REMOTE": connect,
    }
