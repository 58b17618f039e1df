"""The habits of the code, as a test: sizes, names, leftovers, and what may import what.

It looks at the files of the checkout, not at what git tracks, so that it needs no git.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeGuard

import pytest

from tests.sources import ROOT, tree

FLOORS = ("decoder", "spark", "expectations", "infra", "bench")
LINE_COLUMNS_MAX = 110
FILE_LINES_MAX = 400
TEST_FILE_LINES_MAX = 600
TOP_FILES_MAX = {"decoder": 12, "spark": 12, "expectations": 13, "infra": 12, "bench": 24}
FUNCTION_LINES_MAX = 60  # without its docstring; most are about ten
PRAGMA = re.compile(r"\s+# (?:noqa|type: ignore).*")  # as ruff counts
SKIPPED = {".git", "__pycache__", "build", "dist", "vectors"}
FOLDER_NAMES_SHUNNED = {"utils", "util", "common", "helpers", "helper", "manager", "managers", "misc"}

# Written in pieces, so that this file does not hold what it looks for.
LEFTOVERS = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
REGISTRIES = re.compile(
    "|".join(
        re.escape(host)
        for host in (
            "py" + "pi.org",
            "python" + "hosted.org",
            "repo1." + "maven",
            "maven" + ".org",
            "npm" + "js.",
            "docker" + ".io",
            "ghcr" + ".io",
            "quay" + ".io",
            "ana" + "conda.org",
        )
    )
)
MACHINE_PATHS = re.compile(
    r"(?<![\w/.>~}*-])/(?:" + "|".join(("ro" + "ot", "wo" + "rk", "t" + "mp")) + r")/\w"
)


@cache
def _files() -> tuple[Path, ...]:
    """Every text file of the project."""
    return tuple(_found())


def _found() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*")):
        inside = path.relative_to(ROOT).parts
        hidden = any(part.startswith(".") and part != ".ci" for part in inside[:-1])
        if hidden or SKIPPED & set(inside) or not path.is_file() or path.name.endswith(".lock"):
            continue
        if b"\0" not in path.read_bytes()[:4096]:
            yield path


def _sources() -> list[Path]:
    return [path for path in _files() if path.suffix == ".py"]


def _modules() -> list[Path]:
    return [path for path in _sources() if path.relative_to(ROOT).parts[0] in FLOORS]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _places(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{_name(path)}:{number}: {line.strip()[:80]}"
        for path in _files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


def test_the_search_finds_the_project() -> None:
    names = {_name(path) for path in _files()}
    assert {"slotlake", ".ci/run", "pyproject.toml", "decoder/lsn.py", "tests/test_style.py"} <= names


def test_lines_and_files_are_short() -> None:
    long_lines = [
        f"{_name(path)}:{number}"
        for path in _sources()
        if "ruff: noqa: E501" not in (text := path.read_text())  # tables of test cases, one to a line
        for number, line in enumerate(text.splitlines(), 1)
        if len(PRAGMA.sub("", line)) > LINE_COLUMNS_MAX and "noqa: E501" not in line
    ]
    assert long_lines == []
    long_files = [
        f"{_name(path)}: {count}"
        for path in _sources()
        if (count := len(path.read_text().splitlines()))
        > (TEST_FILE_LINES_MAX if path.relative_to(ROOT).parts[0] == "tests" else FILE_LINES_MAX)
    ]
    assert long_files == []


def test_functions_are_short() -> None:
    found = []
    for path in _modules():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
                if lines > FUNCTION_LINES_MAX:
                    found.append(f"{_name(path)}:{node.lineno} {node.name}: {lines}")
    assert found == []


def test_every_module_says_what_it_owns() -> None:
    assert [_name(path) for path in _modules() if not ast.get_docstring(tree(path))] == []


def test_names_say_something() -> None:
    shunned = [_name(path) for path in _sources() if {path.stem, *path.parent.parts} & FOLDER_NAMES_SHUNNED]
    assert shunned == []


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def test_a_spark_session_is_never_called_like_the_package() -> None:
    found = []
    for path in (
        source for source in _sources() if "decoder" not in source.relative_to(ROOT).parts
    ):  # no session
        functions = [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]
        for node in (inner for function in functions for inner in ast.walk(function)):
            name = node.arg if isinstance(node, ast.arg) else node.id if _is_stored(node) else ""
            if isinstance(node, ast.Name | ast.arg) and name == "spark":
                found.append(f"{_name(path)}:{node.lineno}")
    assert found == []


def _words(path: Path) -> set[str]:
    """Dotted names in a file, and ``package.name`` for each name that Python imports from a package."""
    text = path.read_text()
    found = set(re.findall(r"\w+(?:\.\w+)+", text))
    if path.suffix == ".py":
        imports = [node for node in ast.walk(tree(path)) if isinstance(node, ast.ImportFrom)]
        found |= {node.module or "" for node in imports}
        found |= {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    return found


def test_no_module_is_dead() -> None:
    named_in: dict[str, set[Path]] = {}
    for path in (path for path in _files() if path.suffix in {"", ".py", ".toml", ".sh", ".md"}):
        for word in _words(path):
            parts = word.removeprefix("slotlake.").split(".")
            for end in range(1, len(parts) + 1):
                named_in.setdefault(".".join(parts[:end]), set()).add(path)
    dead = [
        _name(path)
        for path in _modules()
        if path.stem not in {"__init__", "__main__"}
        and not named_in.get(".".join(path.relative_to(ROOT).with_suffix("").parts), set()) - {path}
    ]
    assert dead == []


def test_nothing_is_left_over() -> None:
    assert _places(LEFTOVERS) == []


def test_no_registry_is_named() -> None:
    assert _places(REGISTRIES) == []


def test_no_path_of_one_machine_is_named() -> None:
    assert _places(MACHINE_PATHS) == []


def test_the_lock_file_pins_every_package_by_hash_and_leaves_out_what_breaks_spark() -> None:
    text = (ROOT / "infra" / "requirements.txt").read_text()
    entries = re.split(r"\n(?=[A-Za-z0-9])", text)[1:]
    assert len(entries) > 100
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert not re.search(r"^pyspark-client", text, re.MULTILINE)
    assert not re.search(r"^-", text, re.MULTILINE), "no index, no link: these name a host"


def test_every_wanted_package_is_locked() -> None:
    wanted = re.findall(r"^([A-Za-z0-9._-]+)", (ROOT / "infra" / "requirements.in").read_text(), re.MULTILINE)
    locked = set(
        re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / "infra" / "requirements.txt").read_text(), re.MULTILINE)
    )
    assert {name.lower().replace("_", "-") for name in wanted} - locked == set()


def test_every_folder_of_modules_is_a_package_under_one_name() -> None:
    links = {path.name: path.resolve() for path in (ROOT / "src" / "slotlake").iterdir() if path.is_symlink()}
    assert links == {name: ROOT / name for name in (*FLOORS, "dags", "docs")}
    folders = {path.parent for path in _modules()}
    assert [_name(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_each_decision_has_a_number_of_its_own() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert len(set(numbers)) == len(numbers)
    assert [page.name for page in pages if not page.read_text().startswith(f"# {int(page.name[:4])}. ")] == []


def test_each_decision_has_a_date_and_a_status() -> None:
    """What replaces another one, even in part, is a later one that is there."""
    wrong = []
    for page in sorted((ROOT / "docs" / "adr").glob("*.md")):
        status = " ".join(page.read_text().split("\n\n")[1].split())
        found = re.fullmatch(
            r"\*\*Status\.\*\* Accepted, 20\d\d-\d\d-\d\d"
            r"(?:; superseded(?: in part)? by \[ADR (\d+)\]\((\d{4}-[a-z0-9-]+\.md)\): .+)?\.",
            status,
        )
        later = found and found[2]
        if not found or (later and not (page.parent / later).is_file()) or (later or "9") <= page.name:
            wrong.append(f"{page.name}: {status[:100]}")
    assert wrong == []


@pytest.mark.parametrize("floor", FLOORS)
def test_a_floor_has_few_files_at_its_top(floor: str) -> None:
    assert len(list((ROOT / floor).glob("*.py"))) <= TOP_FILES_MAX[floor]


def test_no_import_leads_back() -> None:
    """No module is imported, at whatever depth and time, by what it imports itself."""
    imports = {_dotted(path): _imported(path) for path in _modules()}
    order = TopologicalSorter({name: found & imports.keys() for name, found in imports.items()})
    try:
        order.prepare()
    except CycleError as error:
        pytest.fail(" → ".join(reversed(error.args[1])))


def _dotted(path: Path) -> str:
    return ".".join(("slotlake", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def _imported(path: Path) -> set[str]:
    """Modules that a file imports anywhere: at its top, in a function, or for type hints only."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found - {_dotted(path)}


def test_imports_point_one_way() -> None:
    done = _python("from importlinter.cli import lint_imports_command as run; run()", "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )


def _dags() -> list[Path]:
    return sorted((ROOT / "dags").glob("*.py"))


def test_dag_files_are_named_for_what_they_are() -> None:
    """Airflow has their folder on its path, where another name could hide a package of the user's.

    One is not theirs: `__init__.py`, which makes the folder a package for `from slotlake.dags import *`.
    """
    names = [path.stem for path in _dags() if path.name != "__init__.py"]
    assert [name for name in names if not name.startswith("cdc_")] == []
    (exported,) = re.findall(r"__all__ = (\[.*\])", (ROOT / "dags" / "__init__.py").read_text(), re.DOTALL)
    # The error that it is on purpose would take the DAGs of the others with it.
    assert ast.literal_eval(exported) == [name for name in names if name != "cdc_pipeline_files"]


@pytest.mark.seconds
@pytest.mark.parametrize("path", _dags(), ids=lambda path: path.name)
def test_a_dag_file_is_thin_and_light(path: Path) -> None:
    module = tree(path)
    imported = {
        alias.name for node in ast.walk(module) if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {node.module for node in ast.walk(module) if isinstance(node, ast.ImportFrom) and node.module}
    ours = sorted(name for name in imported if name.split(".")[0] == "slotlake")
    assert [
        name for name in imported if name.split(".")[0] in {"pyspark", "numba", "pyarrow", "psycopg"}
    ] == []
    heavy = "{'pyspark', 'numba', 'pyarrow'}"
    done = _python(f"import {', '.join(['sys', *ours])}; print(*({heavy} & set(sys.modules)))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [], f"importing {ours} brings these in"
