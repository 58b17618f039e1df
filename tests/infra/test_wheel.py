"""The wheel: whole, and enough. It is built, installed, and carries changes with no checkout in reach.

Installed anew is slotlake alone; what it depends on is that of this Python, by a path file.  With
``SLOTLAKE_TEST_LONG=1`` all of that comes from the registry, the newest that pyproject.toml allows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from slotlake import VERSION
from slotlake.spark.java import FIRST_COMPILER_ONLY
from tests.conftest import ROOT, Database
from tests.dags.dag_bag import read_dags
from tests.dags.test_dags_folder import FILE, KINDS, lines_of_the_page

LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(1800 if LONG else 400)]
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
FOLDERS = ("bench", "dags", "decoder", "docs", "expectations", "infra", "spark")
LEFT_OUT = {"requirements.in"}  # what the tests' versions are compiled from


def _run(*command: str | Path, cwd: Path, variables: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: what setuptools leaves behind must not get into the next one."""
    folder = tmp_path_factory.mktemp("build")
    for name in ("src", *FOLDERS):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    _run(sys.executable, "-P", "-c", BUILD, folder / "dist", cwd=folder, variables=_variables())
    (built,) = (folder / "dist").glob("*.whl")
    return built


def _variables() -> dict[str, str]:
    """The caller's, without what leads a Python to the checkout; Spark compiles once, as in all tests."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "SPARK_SUBMIT_OPTS": FIRST_COMPILER_ONLY}


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel in it, and a folder to work in."""

    python: Path
    folder: Path

    def run(self, *arguments: str | Path) -> str:
        """Run `slotlake`, as installed, in that folder."""
        return _run(self.python.with_name("slotlake"), *arguments, cwd=self.folder, variables=_variables())

    def json(self, *arguments: str | Path) -> Any:
        """The JSON document that it prints."""
        return json.loads(self.run(*arguments, "--json"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """The wheel in a virtual environment of its own."""
    folder = tmp_path_factory.mktemp("installed")
    venv.EnvBuilder(symlinks=True).create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    if LONG:
        _install(python, f"slotlake[airflow] @ {wheel.as_uri()}")
    else:
        _install(python, "--no-deps", "--no-index", str(wheel))
        (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (folder / "work").mkdir()
    yield Installed(python, folder / "work")
    shutil.rmtree(folder)  # a gigabyte and a half, in the long form


def _install(python: Path, *words: str) -> None:
    uv = shutil.which("uv")
    if find_spec("pip"):
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    elif uv:  # it made this environment, and put no pip into it
        command = [uv, "pip", "install", "--quiet", "--python", str(python)]
    else:
        pytest.skip("neither pip nor uv is here")
    _run(*command, *words, cwd=python.parent, variables=_variables())


def test_the_wheel_has_every_file(wheel: Path) -> None:
    wanted = {path.relative_to(ROOT).as_posix() for name in FOLDERS for path in (ROOT / name).rglob("*")}
    wanted = {name for name in wanted if (ROOT / name).is_file() and "__pycache__" not in name}
    wanted = {f"slotlake/{name}" for name in wanted if Path(name).name not in LEFT_OUT}
    wanted |= {"slotlake/__init__.py", "slotlake/__main__.py", "slotlake/py.typed"}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == wanted


def test_the_pages_that_messages_name_are_in_the_wheel(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
    named = {
        page
        for name in names
        if name.endswith(".py")
        for page in re.findall(r"docs/[\w/-]+\.md", archive.read(name).decode())
    }
    assert len(named) > 10
    assert {page for page in named if f"slotlake/{page}" not in names} == set()


def test_it_is_the_installed_one_and_puts_one_name_there(installed: Installed) -> None:
    assert installed.run("--version") == f"slotlake {VERSION}\n"
    where = "import slotlake, slotlake.decoder.lsn as lsn; print(slotlake.__file__, lsn.__file__)"
    for file in _run(installed.python, "-c", where, cwd=installed.folder, variables=_variables()).split():
        assert Path(file).is_relative_to(installed.python.parents[1])
    site = next(installed.python.parents[1].glob("lib/python*/site-packages"))
    about = (site / f"slotlake-{VERSION}.dist-info" / "top_level.txt").read_text()
    assert about.split() == ["slotlake"]


def test_init_sync_verify_and_query(installed: Installed, database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, word text); INSERT INTO t VALUES (1, 'one')")
    file = installed.folder / "shop.yaml"
    file.write_text(
        f"""name: shop
source: {{dsn: "{database.dsn}", publications: [shop], slot: slotlake_{database.name}}}
lake: {{uri: "sqlite:///lake.db", warehouse: warehouse, namespace: shop}}
tables: {{public.t: {{}}}}
"""
    )
    installed.run("init", file)
    database.execute("INSERT INTO t VALUES (2, 'two'); UPDATE t SET word = 'uno' WHERE id = 1")
    assert installed.json("sync", file)["changes"] == 2
    assert installed.json("verify", file)["equal"] is True
    answer = installed.json("query", file, "SELECT id, word FROM t ORDER BY id")
    assert answer["rows"] == [["1", "uno"], ["2", "two"]]


def test_a_dags_folder_with_one_line(installed: Installed, tmp_path: Path) -> None:
    folder, pipelines = tmp_path / "dags", tmp_path / "pipelines"
    for made in (folder, pipelines):
        made.mkdir()
    (pipelines / "a.yaml").write_text(FILE.format(name="a"))
    for name, line in lines_of_the_page().items():
        (folder / name).write_text(line + "\n")
    read = read_dags(installed.python, folder, pipelines, tmp_path / "airflow")
    assert read["errors"] == {}
    assert set(read["dags"]) == {"cdc_new", *(f"cdc_{kind}_a" for kind in KINDS)}


@pytest.mark.skipif(
    not LONG, reason="only in the long form the extras are not there; SLOTLAKE_TEST_LONG=1 runs it"
)
@pytest.mark.parametrize("extra", ["demo", "bench"])
def test_without_its_extra_a_command_says_how_to_install_it(installed: Installed, extra: str) -> None:
    command = [str(installed.python.with_name("slotlake")), extra]
    done = subprocess.run(
        command, cwd=installed.folder, env=_variables(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 10
    assert f"pip install 'slotlake[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
