"""What infra/deploy has, read by its readers: compose, Helm, Kubernetes' schemas, systemd, Terraform.

All but systemd and Terraform are of the long form: they are built by Go, or installed apart, when they are
first asked for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from slotlake.infra.config.pipeline_file import load_pipeline
from tests.infra.deployment import (
    COMPOSE,
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

CHART = DEPLOY / "helm" / "slotlake"
VALUES = CHART / "ci" / "shop-values.yaml"
pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]


# -- compose --------------------------------------------------------------------------------------------


@needs_long
def test_composes_code_reads_the_file(tmp_path: Path) -> None:
    """Its schema, and whether the parts fit; this program of compose's own fills in no variables."""
    command = (built(COMPOSE), "--no-interpolation", "--format", "json")
    file = DEPLOY / "compose" / "compose.yaml"
    composed = json.loads(run(*command, file, cwd=file.parent))
    assert set(composed["services"]) == set(yaml.safe_load(file.read_text())["services"])
    for right, wrong in (("cap_drop:", "cap_dorp:"), ("restart: unless-stopped", "restart: [sometimes]")):
        (tmp_path / "compose.yaml").write_text(file.read_text().replace(right, wrong))
        with pytest.raises(AssertionError, match="failed to load project"):
            run(*command, tmp_path / "compose.yaml", cwd=tmp_path)


def test_no_choice_of_profiles_needs_a_part_of_another_one() -> None:
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        needed = service.get("depends_on", {})
        conditions = needed if isinstance(needed, dict) else {each: {} for each in needed}
        for other, condition in conditions.items():
            optional = condition.get("required") is False
            assert optional or set(service["profiles"]) <= set(services[other]["profiles"]), (name, other)


# -- the chart ------------------------------------------------------------------------------------------


def _rendered(*options: str, kubernetes: str = "1.34.0") -> list[dict[str, Any]]:
    version = ("--kube-version", kubernetes)  # Go's build takes the oldest one that it knows
    text = run(built(HELM), "template", "shop", CHART, "-f", VALUES, "-n", "data", *version, *options)
    return [each for each in yaml.safe_load_all(text) if each]


def _pod(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (one,) = [each for each in documents if each["kind"] == "StatefulSet"]
    pod: dict[str, Any] = one["spec"]["template"]
    return pod


@needs_long
def test_helm_finds_nothing_wrong() -> None:
    assert "0 chart(s) failed" in run(built(HELM), "lint", "--strict", CHART, "-f", VALUES)


@needs_long
def test_the_pod_is_not_root_and_has_the_pipeline_file(tmp_path: Path) -> None:
    documents = _rendered()
    assert {each["kind"] for each in documents} == {"ConfigMap", "ServiceAccount", "StatefulSet"}
    spec = _pod(documents)["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {each["name"] for each in container["env"]} >= {"SHOP_DSN", "LAKE_CATALOG"}
        assert "requests" in container["resources"]
    (written,) = [each for each in documents if each["kind"] == "ConfigMap"]
    file = tmp_path / "pipeline.yaml"
    file.write_text(written["data"]["pipeline.yaml"])
    assert load_pipeline(file).name == "shop"
    assert "x-secret" not in json.dumps(documents)


@needs_long
def test_a_change_of_the_pipeline_file_makes_a_new_pod() -> None:
    marks = [
        _pod(_rendered(*options))["metadata"]["annotations"]["checksum/pipeline"]
        for options in ((), (), ("--set", "pipeline.name=other"))
    ]
    assert marks[0] == marks[1] != marks[2]


@needs_long
@pytest.mark.parametrize(
    "wrong",
    [
        "pipeline.source.dsn=postgresql://user:password@host/db",
        "pipeline.name=1shop",
        "pipline.name=shop",
        "secrets.X.nam=y",
        "liveness.silentMinutesMax=-1",
    ],
)
def test_the_chart_refuses_wrong_values(wrong: str) -> None:
    with pytest.raises(AssertionError, match="values don't meet"):
        _rendered("--set", wrong)


@needs_long
def test_several_pods_need_the_state_in_a_store() -> None:
    two = ("--set", "replicas=2,state.volume=false")
    (stateful,) = [each for each in _rendered(*two) if each["kind"] == "StatefulSet"]
    assert stateful["spec"]["replicas"] == 2
    assert "volumeClaimTemplates" not in stateful["spec"]
    assert "state" in {each["name"] for each in stateful["spec"]["template"]["spec"]["volumes"]}
    (one,) = [each for each in _rendered() if each["kind"] == "StatefulSet"]
    assert [each["metadata"]["name"] for each in one["spec"]["volumeClaimTemplates"]] == ["state"]
    folders = "pipeline.changelog.path=log,pipeline.state.path=notes"
    for wrong, said in (("replicas=2", "several pods need"), ("state.volume=false", "loses the state")):
        with pytest.raises(AssertionError, match=said):
            _rendered("--set", f"{folders},{wrong}")


@needs_long
def test_kubernetes_schemas_accept_all_forms_of_the_chart(tmp_path: Path) -> None:
    python = schemas()
    forms: tuple[tuple[str, ...], ...] = (
        (),
        ("--set", "init.enabled=false,liveness.silentMinutesMax=0"),
        ("--set", "replicas=2,state.volume=false"),
        ("--set", "serviceAccount.create=false,serviceAccount.name=mine"),
        ("--set", "state.storageClass=fast,priorityClassName=high,nodeSelector.disk=ssd,podLabels.team=data"),
        ("--set", "image.pullSecrets[0].name=r,tolerations[0].operator=Exists,podAnnotations.a=b"),
    )
    for number, options in enumerate(forms):
        for version in ("1.25", "1.34"):
            file = tmp_path / f"{number}-{version}.yaml"
            file.write_text(yaml.safe_dump_all(_rendered(*options, kubernetes=f"{version}.0")))
            run(python, "-m", "kubernetes_validate", "--strict", "--no-warn", "-k", version, file)


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with restricted_kubernetes(tmp_path_factory.mktemp("kubernetes") / "server") as server:
        yield server


@needs_long
@pytest.mark.parametrize("options", [(), ("--set", "replicas=2,state.volume=false")])
def test_an_api_server_takes_the_chart_and_its_pod_under_the_strictest_profile(
    kubernetes: ApiServer, options: tuple[str, ...]
) -> None:
    documents = _rendered(*options)
    for document in documents:
        assert kubernetes.refusal(document, NAMESPACE) == "", document["kind"]
    spec = {**_pod(documents)["spec"], "serviceAccountName": "default"}
    claimed = [{"name": "state", "emptyDir": {}}] if not options else []
    spec["volumes"] = [*spec["volumes"], *claimed]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "shop-0"}, "spec": spec}
    assert kubernetes.refusal(pod, NAMESPACE) == ""
    spec["securityContext"] = {}
    assert "violates PodSecurity" in kubernetes.refusal(pod, NAMESPACE)


# -- units and policies ---------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("name", ["slotlake@.service", "slotlake-pull@.service"])
def test_systemd_reads_the_units(name: str, tmp_path: Path) -> None:
    """With a program and a user that are here, in place of those that an installation makes."""
    for path in (DEPLOY / "systemd").glob("*.service"):
        text = path.read_text().replace("/opt/slotlake/bin/slotlake", sys.executable)
        text = text.replace("User=slotlake\n", "User=daemon\n").replace("Group=slotlake\n", "")
        (tmp_path / path.name).write_text(text)
    unit = name.replace("@.", "@shop.")
    (tmp_path / unit).symlink_to(tmp_path / name)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (done.stdout + done.stderr).splitlines()
    assert (done.returncode, [line for line in lines if "slotlake" in line or "ignoring" in line]) == (0, [])


@pytest.mark.skipif(
    not (shutil.which("terraform") or shutil.which("tofu")), reason="neither terraform nor tofu is here"
)
def test_terraform_makes_the_policies_that_the_files_have(tmp_path: Path) -> None:
    program = shutil.which("terraform") or shutil.which("tofu") or ""
    shutil.copytree(DEPLOY / "roles" / "policies", tmp_path / "policies")
    (tmp_path / "main.tf").write_text(
        'module "p" {\n  source = "./policies"\n  bucket = "my-lake"\n'
        '  prefixes = ["warehouse", "changelog"]\n  readable = ["warehouse"]\n}\n'
        'output "writer" { value = module.p.writer }\noutput "reader" { value = module.p.reader }\n'
    )
    variables = {**os.environ, "CHECKPOINT_DISABLE": "1", "TF_CLI_CONFIG_FILE": os.devnull}
    run(program, "fmt", "-check", "-diff", DEPLOY / "roles" / "policies", environment=variables)
    run(program, "init", "-input=false", cwd=tmp_path, environment=variables)
    run(program, "validate", cwd=tmp_path, environment=variables)
    run(program, "apply", "-auto-approve", "-input=false", cwd=tmp_path, environment=variables)
    made = json.loads(run(program, "output", "-json", cwd=tmp_path, environment=variables))
    for kind in ("writer", "reader"):
        written = json.loads((DEPLOY / "roles" / f"bucket-{kind}.json").read_text())
        assert json.loads(made[kind]["value"]) == written
