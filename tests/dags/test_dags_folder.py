"""DAGs from one line in a user's DAGs folder, and from the folder of DAG files itself, read by Airflow."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dags.dag_bag import read_dags

pytestmark = [pytest.mark.seconds]

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"backfill", "bootstrap", "maintenance", "monitor", "recover", "sync", "tables", "verify"}
FILE = """name: {name}
source: {{dsn: "postgresql://u:p@127.0.0.1:1/db", publications: [p], slot: slot_{name}}}
lake: {{uri: "sqlite:///lake.db", warehouse: warehouse, namespace: n}}
"""


@pytest.fixture
def pipelines(tmp_path: Path) -> Path:
    """A folder with the pipeline files of `a` and `b`."""
    folder = tmp_path / "pipelines"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.yaml").write_text(FILE.format(name=name))
    return folder


def _read(folder: Path, pipelines: Path) -> dict[str, Any]:
    return read_dags(Path(sys.executable), folder, pipelines, pipelines.parent / "airflow", str(ROOT / "src"))


def lines_of_the_page() -> dict[str, str]:
    """The files that docs/airflow.md tells people to write: name and line."""
    text = (ROOT / "docs" / "airflow.md").read_text()
    return dict(re.findall(r"^ +# (\w+\.py)\n +(.+)$", text, re.MULTILINE))


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "dags of a user"
    folder.mkdir()
    for name, line in lines_of_the_page().items():
        (folder / name).write_text(line + "\n")
    return folder


def test_one_line_makes_all_dags_of_all_pipelines(tmp_path: Path, pipelines: Path) -> None:
    together = f"state: {{path: {tmp_path}/shared}}\nairflow: {{copy_tasks: 3}}\n"
    (pipelines / "b.yaml").write_text(FILE.format(name="b") + together)
    folder = _folder(tmp_path)
    read = _read(folder, pipelines)
    assert set(read["dags"]) == {"cdc_new", *(f"cdc_{kind}_{name}" for kind in KINDS for name in "ab")}
    assert read["errors"] == {}
    # A worker finds a DAG again by its file: it has to be the user's, not one among the installed packages.
    assert {dag[0] for dag in read["dags"].values()} == {str(folder / "slotlake_dags.py")}
    assert read["dags"]["cdc_bootstrap_a"][1:] == ["bootstrap"]
    assert read["dags"]["cdc_bootstrap_b"][1:] == ["bootstrap", "copy_worker"]
    assert read["dags"]["cdc_sync_a"][1:] == ["pull", "apply", "publish", "confirm"]


def test_a_wrong_pipeline_file_takes_away_its_own_dags_only(tmp_path: Path, pipelines: Path) -> None:
    (pipelines / "b.yaml").write_text(FILE.format(name="b").replace("slot:", "slott:"))
    read = _read(_folder(tmp_path), pipelines)
    assert set(read["dags"]) == {"cdc_new", *(f"cdc_{kind}_a" for kind in KINDS)}
    ((file, error),) = read["errors"].items()
    assert Path(file).name == "slotlake_wrong_pipeline_files.py"
    assert "b.yaml" in error
    assert "slott" in error


def test_the_folder_of_dag_files_is_a_dags_folder_too(pipelines: Path) -> None:
    """Its `__init__.py`, which makes it a package, is no DAG file to stumble over, and doubles no DAG."""
    read = _read(ROOT / "dags", pipelines)
    assert set(read["dags"]) == {"cdc_new", *(f"cdc_{kind}_{name}" for kind in KINDS for name in "ab")}
    assert read["errors"] == {}
    assert {Path(dag[0]).parent for dag in read["dags"].values()} == {ROOT / "dags"}
    # What may take long holds no place of the pipeline's pool: micro-batches go on meanwhile.
    pools = {dag: set(tasks.values()) for dag, tasks in read["pools"].items()}
    assert {pools[f"cdc_{kind}_a"].pop() for kind in ("verify", "maintenance", "backfill", "monitor")} == {
        "default_pool"
    }
    assert pools["cdc_sync_a"] == {"slotlake_slot_a"}
    hints = [(dag, field, hint) for dag, form in read["forms"].items() for field, hint in form.items()]
    assert len(hints) > 10
    # Whole sentences, which begin with what to do, or with what the field is for.
    assert [each for each in hints if not re.fullmatch(r"[A-Z]\w+ .{20,}\.", each[2] or "")] == []
