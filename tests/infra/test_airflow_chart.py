"""The values for Airflow's official chart, rendered by Helm, for each executor.

That chart is in no package registry.  ``SLOTLAKE_TEST_AIRFLOW_CHART`` names one, packed or unpacked.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from slotlake.infra.config.pipeline_file import load_pipeline
from tests.infra.deployment import (
    DEPLOY,
    HELM,
    NAMESPACE,
    built,
    needs_long,
    restricted_kubernetes,
    run,
    schemas,
)
from tests.kubernetes.server import ApiServer

CHART: Final = os.environ.get("SLOTLAKE_TEST_AIRFLOW_CHART", "")
VALUES: Final = DEPLOY / "helm" / "airflow-values.yaml"
OTHERS: Final = {
    "local": (),
    "celery": ("airflow-celery-values.yaml",),
    "kubernetes": ("airflow-kubernetes-values.yaml",),
}
EXECUTORS: Final = {"local": "LocalExecutor", "celery": "CeleryExecutor", "kubernetes": "KubernetesExecutor"}
IMAGE: Final = "slotlake-airflow:0.3.0"
pytestmark = [
    needs_long,
    pytest.mark.server,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not CHART, reason="SLOTLAKE_TEST_AIRFLOW_CHART names no chart of Airflow's"),
]


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with restricted_kubernetes(tmp_path_factory.mktemp("kubernetes") / "server") as server:
        yield server


@pytest.fixture(params=sorted(OTHERS))
def executor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rendered(executor: str) -> str:
    others = [word for name in OTHERS[executor] for word in ("-f", DEPLOY / "helm" / name)]
    command = (built(HELM), "template", "airflow", CHART, "-f", VALUES, *others, "-n", "data")
    return run(*command, "--kube-version", "1.34.0")


@pytest.fixture
def documents(rendered: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(rendered) if each]


def _pods(documents: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the pods that run the image, with the names of what makes them; also that of a task."""
    for document in documents:
        if document["kind"] in ("Deployment", "StatefulSet", "Job"):
            pod = document["spec"]["template"]["spec"]
            claims = [each["metadata"]["name"] for each in document["spec"].get("volumeClaimTemplates", ())]
            pod["volumes"] = [*pod.get("volumes", ()), *({"name": name, "emptyDir": {}} for name in claims)]
            if any(container["image"] == IMAGE for container in pod["containers"]):
                yield document["metadata"]["name"], pod
    if template := _configuration(documents).get("pod_template_file.yaml"):
        yield "task", yaml.safe_load(template)["spec"]


def _configuration(documents: list[dict[str, Any]]) -> dict[str, str]:
    (found,) = [each for each in documents if "airflow.cfg" in each.get("data", {})]
    return dict(found["data"])


def test_kubernetes_schemas_accept_it(rendered: str, tmp_path: Path) -> None:
    for version in ("1.30", "1.34"):
        file = tmp_path / f"{version}.yaml"
        file.write_text(rendered)
        run(schemas(), "-m", "kubernetes_validate", "--no-warn", "-k", version, file)


def test_an_api_server_takes_it_and_its_pods_under_the_strictest_profile(
    documents: list[dict[str, Any]], kubernetes: ApiServer
) -> None:
    refusals = {name: kubernetes.refusal(each, NAMESPACE) for each in documents if (name := _name(each))}
    assert {name: why for name, why in refusals.items() if why} == {}
    for name, pod in _pods(documents):
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod}
        pod.pop("serviceAccountName", None)  # of the chart, and nothing of it was made
        assert kubernetes.refusal(document, NAMESPACE) == "", name


def _name(document: dict[str, Any]) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


def test_the_executor_and_the_pods_that_it_needs(documents: list[dict[str, Any]], executor: str) -> None:
    names = {name for name, _ in _pods(documents)}
    parts = {"airflow-api-server", "airflow-dag-processor", "airflow-scheduler", "airflow-triggerer"}
    own = {"local": set(), "celery": {"airflow-worker"}, "kubernetes": {"task"}}[executor]
    assert names == {*parts, *own, "airflow-run-airflow-migrations"}
    settings = _configuration(documents)["airflow.cfg"]
    assert f"executor = {EXECUTORS[executor]}\n" in settings
    assert "dags_folder = /opt/slotlake/dags\n" in settings
    assert "LocalDagBundle" in settings


def test_no_pod_is_root_or_writes_outside_its_volumes(documents: list[dict[str, Any]]) -> None:
    for name, pod in _pods(documents):
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["runAsUser"] == 50000, name
        volumes = {each["name"] for each in pod["volumes"]}
        for container in (*(pod.get("initContainers") or ()), *pod["containers"]):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, (name, container["name"])
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
            mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
            assert mounted["/tmp"] == "scratch", (name, container["name"])
            assert set(mounted.values()) <= volumes, name


def test_each_pod_that_reads_a_pipeline_file_has_it(documents: list[dict[str, Any]], tmp_path: Path) -> None:
    for name, pod in _pods(documents):
        for container in pod["containers"]:
            if "groomer" in container["name"]:
                continue
            variables = {each["name"]: each for each in container["env"]}
            assert variables["SLOTLAKE_PIPELINES"]["value"] == "/etc/slotlake/shop.yaml", name
            assert variables["SHOP_DSN"]["valueFrom"]["secretKeyRef"] == {"name": "shop-source", "key": "dsn"}
            assert "/etc/slotlake" in {each["mountPath"] for each in container["volumeMounts"]}, name
    (files,) = [each["data"] for each in documents if each["metadata"]["name"] == "slotlake-pipelines"]
    (tmp_path / "shop.yaml").write_text(files["shop.yaml"])
    settings = load_pipeline(tmp_path / "shop.yaml")
    (jobs,) = [pod for name, pod in _pods(documents) if name.endswith("migrations")]
    assert f"pools set {settings.pool} 1 " in jobs["containers"][0]["args"][-1]


def test_what_it_calls_by_its_path_is_in_the_image(rendered: str, documents: list[dict[str, Any]]) -> None:
    """The probes' /entrypoint and the groomers' /clean-logs are of Airflow's image."""
    called = set()
    for _, pod in _pods(documents):
        for container in pod["containers"]:
            text = json.dumps(
                [container.get(key) for key in ("command", "args", "livenessProbe", "startupProbe")]
            )
            called |= set(re.findall(r"(?<=[ \"])/[a-z][a-z-]+(?=[ \"\\])", text))
    made = set(re.findall(r"ln -s \S+ (/[\w-]+)", (DEPLOY / "Dockerfile").read_text()))
    assert called <= made
    assert called == {"/entrypoint", "/clean-logs"}
    assert "secretKeyRef" in rendered


def test_no_password_is_made_up_by_the_chart(documents: list[dict[str, Any]], executor: str) -> None:
    """A secret that each rendering makes anew would end all sessions; Redis' own are made once, by hooks."""
    made = {each["metadata"]["name"]: each for each in documents if each["kind"] == "Secret"}
    assert all("helm.sh/hook" in each["metadata"]["annotations"] for each in made.values())
    assert set(made) == {"airflow-broker-url", *(["airflow-redis-password"] if executor == "celery" else ())}
