"""Under the rules of the image: not root, no capability, a root that is only read.

This machine's own packages are in the place of the image's.  test_image.py builds images.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.infra.local.postgres import EmbeddedPostgres
from tests.catalogs import postgres_uri
from tests.conftest import ROOT, Database, fresh_database
from tests.e2e.oracle import pipeline_file
from tests.kubernetes.pods import Image, begin, nothing, pod_of
from tests.storage import moved_to
from tests.workers import needs_namespaces

pytestmark = [pytest.mark.server, pytest.mark.timeout(300), needs_namespaces]
LONG = pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
USER = 1000
PROGRAM = "import sys; from slotlake.infra.cli.main import main; sys.exit(main())"
REFUSED = """
import os, pathlib, sys
for place in ("/x", "/etc/x", "/usr/x", "/opt", sys.prefix + "/x", sys.argv[1] + "/x"):
    try:
        pathlib.Path(place).mkdir()
    except OSError:
        continue
    sys.exit(place + " can be written")
status = pathlib.Path("/proc/self/status").read_text()
assert "CapEff:\\t0000000000000000" in status and "NoNewPrivs:\\t1" in status, status
assert os.getuid() == 1000 and not list(pathlib.Path("/tmp").iterdir()) and os.getpid() < 10
"""


@pytest.fixture
def image(tmp_path: Path) -> Image:
    made = tmp_path / "image"
    made.mkdir()
    return Image.of_this_machine(made, USER)


class Container:
    """Runs commands in containers whose `/var/lib/slotlake` is a folder of the test."""

    def __init__(self, image: Image, folder: Path, variables: dict[str, str]) -> None:
        self._image, self._folder, self._variables, self._number = image, folder, variables, 0
        self.state = folder / "state"
        self.state.mkdir()
        os.chown(self.state, USER, USER)

    def run(self, *words: str) -> str:
        """Run a command that must succeed; return what it printed.

        Args:
            words: the command.
        """
        self._number += 1
        folder = self._folder / str(self._number)
        mounts = {"/tmp": None, "/var/lib/slotlake": self.state}
        pod = pod_of(words, (USER, USER), mounts, self._variables)
        code = begin(pod, self._image, nothing, folder).wait(timeout=200)
        said = (folder / "log").read_text()
        assert code == 0, said[-3000:]
        return said


def test_it_can_write_only_where_it_is_given_a_place(image: Image, tmp_path: Path) -> None:
    Container(image, tmp_path, {}).run("python", "-P", "-c", REFUSED, str(ROOT))


def test_when_it_is_killed_nothing_of_it_goes_on(image: Image, tmp_path: Path) -> None:
    marker = f"86400.{secrets.randbelow(10**9)}"
    pod = pod_of(("sh", "-c", f"echo begun; sleep {marker}; true"), (USER, USER), {}, {})
    process = begin(pod, image, nothing, tmp_path / "pod")
    _until(lambda: "begun" in (tmp_path / "pod" / "log").read_text())
    _until(lambda: _sleeping(marker))
    process.kill()
    process.wait()
    _until(lambda: not _sleeping(marker))


def _sleeping(marker: str) -> bool:
    done = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True, check=True)
    return f"sleep {marker}" in done.stdout.splitlines()


def _until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 20
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.05)


@LONG
def test_a_pipeline_is_made_and_synced_there(
    image: Image,
    database: Database,
    pg: EmbeddedPostgres,
    object_store: LocalObjectStore,
    connect: str,
    tmp_path: Path,
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, word text); INSERT INTO t VALUES (1, 'one')")
    server = {name: value for name, value in os.environ.items() if name.startswith("SPARK_CONNECT")}
    variables = {"SHOP_DSN": database.dsn, "SLOTLAKE_SPARK_REMOTE": connect, **server}
    container = Container(image, tmp_path, variables)
    with fresh_database(pg) as catalog:
        file = pipeline_file(container.state, database, ["t"], uri=postgres_uri(catalog))
        moved_to(object_store, file)
        file.write_text(file.read_text().replace(f'"{database.dsn}"', "env:SHOP_DSN"))

        def slotlake(command: str) -> dict[str, Any]:
            words = (command, f"/var/lib/slotlake/{file.name}", "--json")
            said = container.run("python", "-P", "-c", PROGRAM, *words)
            return dict(json.loads(said[said.index("{") :]))

        slotlake("init")
        database.execute("INSERT INTO t VALUES (2, 'two'); UPDATE t SET word = 'uno' WHERE id = 1")
        assert slotlake("sync")["changes"] == 2
    written = [path for path in container.state.rglob("*") if path != file]
    assert written
    assert {path.stat().st_uid for path in written} == {USER}
