"""The images of infra/deploy/Dockerfile, built by buildah and started from their root file systems.

Base images cannot be had here, so the base is made of Debian's packages (mmdebstrap), once, in the cache
folder.
A container is a mount namespace with the image's root, read-only, and a process without any capability.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slotlake.infra.launch.certificates import system_bundle
from slotlake.infra.launch.folders import home
from tests.cluster import why_not
from tests.conftest import ROOT, Database
from tests.infra.deployment import DEPLOY, needs_long, run

pytestmark = [needs_long, pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(3600)]
TOOLS = ("buildah", "mmdebstrap", "unshare", "setpriv")
BASE = "localhost/slotlake-base"
FILE = """name: shop
source: {{dsn: env:SHOP_DSN, publications: [shop], slot: slotlake_{slot}}}
lake: {{uri: "sqlite:///lake.db", warehouse: warehouse, namespace: shop}}
tables: {{public.t: {{}}}}
"""


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


@dataclass(frozen=True)
class Image:
    """An image that was built, its root file system, and what its configuration says."""

    name: str
    root: Path
    configuration: dict[str, Any]

    def run(
        self,
        *arguments: str,
        state: Path,
        environment: dict[str, str],
        entrypoint: Sequence[str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Start a container: its root read-only, its user, no capability; `state` is its volume.

        Args:
            arguments: what follows the entry point.
            state: the folder that is `/var/lib/slotlake`.
            environment: more variables.
            entrypoint: instead of the image's.
        """
        said = self.configuration
        words = [*(entrypoint or said["Entrypoint"]), *arguments]
        variables = [*said["Env"], *(f"{name}={text}" for name, text in environment.items())]
        user, _, group = said["User"].partition(":")
        drop = f"setpriv --reuid={user} --regid={group} --clear-groups --inh-caps=-all --bounding-set=-all"
        command = f"cd {said['WorkingDir']} && exec " + shlex.join(["env", "-i", *variables, *words])
        script = textwrap.dedent(f"""
            set -e
            root={shlex.quote(str(self.root))}
            touch "$root/etc/hosts"
            mount --bind "$root" "$root"
            mount -o remount,ro,bind "$root"
            mount -t tmpfs -o mode=1777 none "$root/tmp"
            mount --bind {shlex.quote(str(state))} "$root/var/lib/slotlake"
            mount --bind /etc/hosts "$root/etc/hosts"
            mount -t proc none "$root/proc"
            mount -t tmpfs -o mode=755 none "$root/dev"
            for each in null zero random urandom; do
                touch "$root/dev/$each"; mount --bind "/dev/$each" "$root/dev/$each"
            done
            mkdir -m 1777 "$root/dev/shm"
            ln -s /proc/self/fd "$root/dev/fd"
            cd "$root"
            exec chroot "$root" {drop} --no-new-privs sh -c {shlex.quote(command)}
            """)
        return subprocess.run(
            ["unshare", "-mp", "--fork", "--kill-child", "--propagation", "private", "sh", "-c", script],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )


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
    container = run("buildah", "from", "scratch").strip()
    run("buildah", "add", container, archive, "/", seconds_max=600)
    bundle = system_bundle()
    if bundle:
        run("buildah", "copy", container, bundle, "/usr/local/share/ca-certificates/test.crt")
        run("buildah", "copy", container, bundle, "/etc/ssl/certs/ca-certificates.crt")
    run("buildah", "commit", "--quiet", container, BASE, seconds_max=600)
    run("buildah", "rm", container)
    return BASE


@pytest.fixture(scope="module", params=["run", "airflow"])
def image(base: str, request: pytest.FixtureRequest) -> Iterator[Image]:
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
    yield Image(name, root, said)
    run("buildah", "umount", container)
    run("buildah", "rm", container)


def test_a_container_carries_changes_as_a_user_with_a_read_only_root(
    image: Image, database: Database, tmp_path: Path
) -> None:
    if image.name.endswith("airflow"):
        pytest.skip("the image without Airflow")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, word text); INSERT INTO t VALUES (1, 'one')")
    file = tmp_path / "pipeline.yaml"
    file.write_text(FILE.format(slot=database.name))
    os.chown(tmp_path, 1000, 1000)
    for parent in tmp_path.parents[:2]:  # with --basetemp, one of them is /tmp: nothing is taken away
        parent.chmod(stat.S_IMODE(parent.stat().st_mode) | 0o055)
    given = {"SHOP_DSN": database.dsn}

    def slotlake(*words: str) -> str:
        done = image.run(*words, state=tmp_path, environment=given)
        assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-500:]
        assert "fetching" not in done.stdout + done.stderr
        return done.stdout

    slotlake("init", "pipeline.yaml")
    database.execute("INSERT INTO t VALUES (2, 'two'); UPDATE t SET word = 'uno' WHERE id = 1")
    assert json.loads(slotlake("sync", "pipeline.yaml", "--json"))["changes"] == 2
    assert json.loads(slotlake("verify", "pipeline.yaml", "--json"))["equal"] is True
    assert "uno" in slotlake("query", "pipeline.yaml", "SELECT * FROM t ORDER BY id")
    assert {path.stat().st_uid for path in (tmp_path / "warehouse").rglob("*")} == {1000}


def test_the_image_fetches_and_compiles_nothing_and_runs_as_it_says(image: Image, tmp_path: Path) -> None:
    user = int(image.configuration["User"].partition(":")[0])
    os.chown(tmp_path, user, user)
    words = ("python", "-P", "-c", INSIDE, str(user))
    done = image.run(*words, state=tmp_path, environment={}, entrypoint=("tini", "--"))
    assert done.returncode == 0, done.stderr[-3000:]


def test_airflow_reads_the_dags_in_its_image(image: Image, tmp_path: Path) -> None:
    if not image.name.endswith("airflow"):
        pytest.skip("the image with Airflow")
    os.chown(tmp_path, 50000, 0)
    (tmp_path / "shop.yaml").write_text(FILE.format(slot="x"))
    given = {
        "SLOTLAKE_PIPELINES": "/var/lib/slotlake/shop.yaml",
        "AIRFLOW_HOME": "/tmp/",
        "SHOP_DSN": "postgresql://nowhere/x",
    }
    script = "airflow db migrate >&2 && airflow dags reserialize >&2 && airflow dags list -o json"
    done = image.run("sh", "-c", script, state=tmp_path, environment=given)
    assert done.returncode == 0, done.stderr[-3000:]
    listed = json.loads(done.stdout[done.stdout.index("[") :])
    assert "cdc_sync_shop" in {each["dag_id"] for each in listed}
