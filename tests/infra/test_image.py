"""The images of infra/deploy/Dockerfile, built by buildah and started from their root file systems.

Base images cannot be had here, so the base is made of Debian's packages (mmdebstrap), once, in the cache
folder.
A container is a mount namespace with the image's root, read-only, and a process without any capability.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.fernet import Fernet

from slotlake import VERSION
from slotlake.infra.launch.certificates import system_bundle
from slotlake.infra.launch.folders import home
from slotlake.infra.local.airflow_client import AirflowClient
from slotlake.infra.local.postgres import EmbeddedPostgres
from slotlake.infra.local.process import free_port
from tests.cluster import why_not
from tests.conftest import ROOT, Database, fresh_database
from tests.infra.deployment import DEPLOY, needs_long, run
from tests.kubernetes.pods import Image, begin, nothing, pod_of

pytestmark = [needs_long, pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(3600)]
TOOLS = ("buildah", "mmdebstrap", "unshare", "setpriv")
BASE = "localhost/slotlake-base"
FILE = """name: shop
source: {{dsn: env:SHOP_DSN, publications: [shop], slot: slotlake_{slot}}}
lake: {{uri: "sqlite:///lake.db", warehouse: warehouse, namespace: shop}}
tables: {{public.t: {{}}}}
"""
QUIET = "airflow: {schedule: null, verify: manual, maintenance: null}\nmonitor: {schedule: null}\n"


INSIDE = """
import errno, os, sys
from pathlib import Path
assert os.getuid() == int(sys.argv[1])
try:
    Path("/opt/slotlake/x").touch()
except OSError as error:
    assert error.errno in (errno.EACCES, errno.EROFS), error
else:
    sys.exit("the root can be written")
from slotlake.infra.kernels import compile_all, misses
compile_all()
assert misses() == [], misses()
from slotlake.infra.local.runtime import spark_runtime
assert all(path.is_relative_to("/opt/slotlake") for path in spark_runtime("s3").jar_paths)
assert not Path("/tmp", ".cache").exists()
"""
EXECUTORS = """
from airflow.providers.celery.executors.celery_executor import CeleryExecutor
from airflow.providers.cncf.kubernetes.executors.kubernetes_executor import KubernetesExecutor
import kombu.transport.redis
import statsd
"""


@dataclass(frozen=True)
class Built:
    """An image that was built, its root file system, and what its configuration says."""

    name: str
    image: Image
    user: tuple[int, int]
    working: str

    def begin(
        self,
        *words: str,
        log: Path,
        mounts: Mapping[str, Path | None],
        variables: Mapping[str, str],
        entrypoint: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a container: its root read-only, its user, no capability; it goes with its process.

        Args:
            words: what follows the entry point.
            log: the folder for its output, in the file `log`.
            mounts: what is seen at a path besides the image.
            variables: more variables.
            entrypoint: instead of the image's.
        """
        own = {"workingDir": self.working, "command": list(entrypoint)}
        return begin(pod_of(words, self.user, mounts, variables, **own), self.image, nothing, log)

    def run(
        self, *words: str, state: Path, variables: Mapping[str, str], entrypoint: Sequence[str] = ()
    ) -> tuple[int, str]:
        """Run a container to its end; `state` is its volume.  Return its exit code and output.

        Args:
            words: what follows the entry point.
            state: the folder that is `/var/lib/slotlake`.
            variables: more variables.
            entrypoint: instead of the image's.
        """
        mounts = {"/tmp": None, "/var/lib/slotlake": state}
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "container")
            code = self.begin(
                *words, log=log, mounts=mounts, variables=variables, entrypoint=entrypoint
            ).wait(timeout=600)
            return code, (log / "log").read_text(errors="replace")


def _missing() -> str:
    absent = [name for name in TOOLS if shutil.which(name) is None]
    return f"{', '.join(absent)} not here (Debian has them as packages)" if absent else why_not()


@pytest.fixture(scope="module")
def base() -> str:
    """The base image, made once; it has this machine's certificate authorities, as a company's base would."""
    if reason := _missing():
        pytest.skip(reason)
    archive = home() / "debian-bookworm.tar"
    if not archive.is_file():
        incoming = archive.with_suffix(".incoming.tar")
        run("mmdebstrap", "--variant=apt", "--include=ca-certificates", "bookworm", incoming, seconds_max=900)
        incoming.rename(archive)
    bundle = system_bundle()
    given = [archive, *([Path(bundle)] if bundle else [])]
    said = "".join(f"{path}{path.stat().st_size}{path.stat().st_mtime_ns}" for path in given)
    name = f"{BASE}:{hashlib.sha256(said.encode()).hexdigest()[:12]}"
    if (
        subprocess.run(
            ["buildah", "inspect", "--type", "image", name], capture_output=True, check=False
        ).returncode
        == 0
    ):
        return name  # a new one would be another image, on which no layer that was built is of use
    container = run("buildah", "from", "scratch").strip()
    run("buildah", "add", container, archive, "/", seconds_max=600)
    if bundle:
        run("buildah", "copy", container, bundle, "/usr/local/share/ca-certificates/test.crt")
        run("buildah", "copy", container, bundle, "/etc/ssl/certs/ca-certificates.crt")
    run("buildah", "commit", "--quiet", container, name, seconds_max=600)
    run("buildah", "rm", container)
    return name


@pytest.fixture(scope="module", params=["run", "airflow"])
def built(base: str, request: pytest.FixtureRequest) -> Iterator[Built]:
    """An image, and a container of it that is mounted, not started."""
    name = f"localhost/slotlake-{request.param}"
    command = ["buildah", "bud", "--isolation", "chroot", "--layers", "--target", request.param]
    command += ["--ignorefile", str(DEPLOY / "Dockerfile.dockerignore")]
    command += ["--build-arg", f"BASE={base}", "-f", str(DEPLOY / "Dockerfile"), "-t", name]
    for given in ("/etc/pip.conf",):
        command += ["--volume", f"{given}:{given}:ro"] if Path(given).is_file() else []
    run(*command, str(ROOT), seconds_max=3000)
    container = run("buildah", "from", name).strip()
    root = Path(run("buildah", "mount", container).strip())
    said = json.loads(run("buildah", "inspect", "--type", "image", name))["OCIv1"]["config"]
    user, _, group = said["User"].partition(":")
    variables = dict(each.split("=", 1) for each in said["Env"])
    made = Image(variables, root=root, entrypoint=said["Entrypoint"])
    yield Built(name, made, (int(user), int(group)), said["WorkingDir"])
    run("buildah", "umount", container)
    run("buildah", "rm", container)


def _only(built: Built, kind: str) -> None:
    if not built.name.endswith(kind):
        pytest.skip(f"of the image {kind}")


def _opened(folder: Path, built: Built) -> Path:
    """A folder of the test that the image's user may write."""
    folder.mkdir(exist_ok=True)
    os.chown(folder, *built.user)
    for parent in folder.parents[:3]:  # with --basetemp, one of them is /tmp: nothing is taken away
        parent.chmod(stat.S_IMODE(parent.stat().st_mode) | 0o055)
    return folder


def test_a_container_carries_changes_as_a_user_with_a_read_only_root(
    built: Built, database: Database, tmp_path: Path
) -> None:
    _only(built, "run")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, word text); INSERT INTO t VALUES (1, 'one')")
    file = _opened(tmp_path, built) / "pipeline.yaml"
    file.write_text(FILE.format(slot=database.name))

    def slotlake(*words: str) -> str:
        code, said = built.run(*words, state=tmp_path, variables={"SHOP_DSN": database.dsn})
        assert code == 0, said[-3000:]
        assert "fetching" not in said
        return said

    slotlake("init", "pipeline.yaml")
    database.execute("INSERT INTO t VALUES (2, 'two'); UPDATE t SET word = 'uno' WHERE id = 1")
    assert _json(slotlake("sync", "pipeline.yaml", "--json"))["changes"] == 2
    assert _json(slotlake("verify", "pipeline.yaml", "--json"))["equal"] is True
    assert "uno" in slotlake("query", "pipeline.yaml", "SELECT * FROM t ORDER BY id")
    assert {path.stat().st_uid for path in (tmp_path / "warehouse").rglob("*")} == {1000}


def _json(said: str) -> dict[str, Any]:
    return dict(json.loads(said[said.index("{") : said.rindex("}") + 1]))


def test_the_image_fetches_and_compiles_nothing_and_runs_as_it_says(built: Built, tmp_path: Path) -> None:
    words = ("python", "-P", "-c", INSIDE, str(built.user[0]))
    state = _opened(tmp_path, built)
    code, said = built.run(*words, state=state, variables={}, entrypoint=("tini", "--"))
    assert code == 0, said[-3000:]


@pytest.mark.skipif(not shutil.which("docker-registry"), reason="docker-registry is not here")
def test_the_image_goes_to_a_registry_and_comes_back(built: Built, tmp_path: Path) -> None:
    """As the release pushes it: by version and kind."""
    with _registry(tmp_path) as address:
        kind = built.name.rpartition("-")[2]
        there = f"docker://{address}/slotlake:v{VERSION}-{kind}"
        run("buildah", "push", "--tls-verify=false", built.name, there, seconds_max=900)
        pulled = run("buildah", "pull", "--quiet", "--tls-verify=false", there, seconds_max=900).strip()
        ours, theirs = (
            json.loads(run("buildah", "inspect", "--type", "image", name)) for name in (built.name, pulled)
        )
        run("buildah", "rmi", there.removeprefix("docker://"))
        assert theirs["OCIv1"] == ours["OCIv1"]
        assert list((tmp_path / "images").rglob("blobs"))


@contextmanager
def _registry(folder: Path) -> Iterator[str]:
    """A registry of images, and its address."""
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
        "http": {"addr": address},
    }
    file = folder / "registry.yml"
    file.write_text(yaml.safe_dump(settings))
    process = subprocess.Popen(["docker-registry", "serve", file], stderr=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + 30
        while socket.socket().connect_ex((address.split(":", maxsplit=1)[0], int(address.split(":")[1]))):
            assert time.monotonic() < give_up, "the registry did not come"
            time.sleep(0.1)
        yield address
    finally:
        process.kill()
        process.wait()


def test_the_image_of_airflow_has_what_its_chart_and_its_executors_ask_for(
    built: Built, tmp_path: Path
) -> None:
    _only(built, "airflow")
    state = _opened(tmp_path, built)
    code, said = built.run("python", "-P", "-c", EXECUTORS, state=state, variables={"AIRFLOW_HOME": "/tmp"})
    assert code == 0, said[-3000:]
    code, said = built.run("sh", "-c", "exec /entrypoint airflow version", state=state, variables={})
    assert (code, said.split()[-1:]) == (0, ["3.3.2"]), said[-3000:]


def test_airflow_in_its_image_publishes_a_batch(
    built: Built, database: Database, pg: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Its parts as in the chart: each in a container, with a root that is only read, and the chart's logs."""
    _only(built, "airflow")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, word text); INSERT INTO t VALUES (1, 'one')")
    state = _opened(tmp_path / "state", built)
    (state / "shop.yaml").write_text(FILE.format(slot=database.name) + QUIET)
    with ExitStack() as stack:
        metadata = stack.enter_context(fresh_database(pg))
        counted = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        counted.bind(("127.0.0.1", 0))
        airflow = _Airflow(built, tmp_path, state, _settings(database, metadata, counted.getsockname()[1]))
        airflow.migrate()
        pool = f"slotlake_slotlake_{database.name}"  # the values make that of their example
        code, said = airflow.once("bash", "-c", f"exec airflow pools set {pool} 1 'one reader'")
        assert code == 0, said[-3000:]
        for part in ("api-server", "dag-processor", "scheduler"):
            stack.enter_context(airflow.part(part))
        client = airflow.wait_ready()
        client.wait_dags(["cdc_bootstrap_shop", "cdc_sync_shop"], seconds_max=120)
        _run(client, "cdc_bootstrap_shop", airflow)
        database.execute("INSERT INTO t VALUES (2, 'two'); UPDATE t SET word = 'uno' WHERE id = 1")
        _run(client, "cdc_sync_shop", airflow)
        check = ("bash", "-c", "exec /entrypoint airflow jobs check --job-type SchedulerJob --local")
        code, said = airflow.once(*check)
        assert code == 0, said
        code, said = airflow.once("slotlake", "query", "/var/lib/slotlake/shop.yaml", "SELECT * FROM t")
        assert code == 0, said
        assert "uno" in said
        assert "two" in said
        counted.settimeout(30)
        assert counted.recv(2000).startswith(b"airflow.")


class _Airflow:
    """The parts of an Airflow, each in a container of its own; what they share is the folder of the state."""

    def __init__(self, built: Built, folder: Path, state: Path, variables: Mapping[str, str]) -> None:
        self._built, self._folder, self._variables = built, folder, variables
        settings = folder / "airflow.cfg"
        core = yaml.safe_load((DEPLOY / "helm" / "airflow-values.yaml").read_text())["config"]["core"]
        settings.write_text("\n".join(["[core]", *(f"{name} = {text}" for name, text in core.items()), ""]))
        self._mounts: dict[str, Path | None] = {
            "/var/lib/slotlake": state,
            "/opt/airflow/logs": None,
            "/opt/airflow/airflow.cfg": settings,
        }

    def migrate(self) -> None:
        """Run the command of the values for the chart."""
        values = yaml.safe_load((DEPLOY / "helm" / "airflow-values.yaml").read_text())
        code, said = self.once(*values["migrateDatabaseJob"]["args"])
        assert code == 0, said[-3000:]

    def once(self, *words: str) -> tuple[int, str]:
        """Run a command to its end.

        Args:
            words: the command.
        """
        code = self._begin("once", *words).wait(timeout=300)
        said = (self._folder / "once" / "log").read_text(errors="replace")
        shutil.rmtree(self._folder / "once")
        return code, said

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Run a part of Airflow, as the chart starts it."""
        process = self._begin(name, "bash", "-c", f"exec airflow {name}")
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def wait_ready(self) -> AirflowClient:
        """Wait until all parts are well; return a client."""
        give_up = time.monotonic() + 240
        password = self._folder / "state" / "passwords.json"
        url = f"http://127.0.0.1:{self._variables['AIRFLOW__API__PORT']}"
        while True:
            if password.exists() and password.read_text().endswith("\n"):
                client = AirflowClient(url, "admin", json.loads(password.read_text())["admin"])
                if client.healthy():
                    return client
            assert time.monotonic() < give_up, self.said()
            time.sleep(0.5)

    def said(self) -> str:
        """The ends of the logs of its parts."""
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in self._folder.glob("*/log"))

    def _begin(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        temporary = self._folder / f"{name}-tmp"
        temporary.mkdir(exist_ok=True)
        temporary.chmod(0o1777)
        mounts = {**self._mounts, "/tmp": temporary}
        return self._built.begin(*words, log=self._folder / name, mounts=mounts, variables=self._variables)


def _run(client: AirflowClient, dag: str, airflow: _Airflow) -> None:
    client.pause(dag, False)
    run = client.trigger(dag)
    state = client.wait_run(dag, run, seconds_max=300)
    assert state == "success", client.reason(dag, run) + airflow.said()


def _settings(database: Database, metadata: Database, gauges: int) -> dict[str, str]:
    """What the chart, with the values, gives to each part; the addresses are this machine's."""
    port = str(free_port())
    uri = metadata.server.url(metadata.name).replace("://", "+psycopg2://", 1)
    return {
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__FERNET_KEY": Fernet.generate_key().decode(),
        "AIRFLOW__API__PORT": port,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": uri,
        "AIRFLOW__METRICS__STATSD_ON": "True",
        "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
        "AIRFLOW__METRICS__STATSD_PORT": str(gauges),
        "SLOTLAKE_PIPELINES": "/var/lib/slotlake/shop.yaml",
        "SHOP_DSN": database.dsn,
    }
