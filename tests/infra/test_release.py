"""What a release is made of says the same everywhere, and the forge's files call what is there."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
import yaml

from slotlake import VERSION
from tests.conftest import ROOT

pytestmark = pytest.mark.fast
FORGE = ROOT / ".github"


def _yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_one_version_everywhere() -> None:
    newest = re.findall(
        r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    chart = _yaml("infra/deploy/helm/slotlake/Chart.yaml")
    image = _yaml("infra/deploy/helm/airflow-values.yaml")["defaultAirflowTag"]
    assert {VERSION} == {newest[0][0], chart["version"], chart["appVersion"], image}
    assert [day for _, day in newest[1:]] == sorted((day for _, day in newest[1:]), reverse=True)
    assert "unreleased" not in [day for _, day in newest[1:]]


def test_what_is_checked_before_a_commit_is_what_the_lock_file_has() -> None:
    locked = re.findall(r"^ruff==([\d.]+)", (ROOT / "infra" / "requirements.txt").read_text(), re.MULTILINE)
    hooks = [hook for repo in _yaml(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    asked = {each for hook in hooks for each in hook.get("additional_dependencies", [])}
    assert asked == {f"ruff=={locked[0]}"}


@pytest.mark.parametrize("path", sorted((FORGE / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_a_workflow_runs_commands_that_are_there(path: Any) -> None:
    steps = [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]
    commands = [step["run"].split()[0] for step in steps if "run" in step]
    assert commands
    assert [each for each in commands if not (ROOT / each).is_file()] == []


@pytest.mark.parametrize(
    ("tag", "words"),
    [("v9.9.9", "the tag is v9.9.9"), (f"v{VERSION}", f"CHANGELOG.md has no day for {VERSION}")],
)
def test_a_tag_that_fits_nothing_is_not_built(tag: str, words: str) -> None:
    """The version in hand has no day yet; at a release, while it has one, there is nothing to refuse."""
    if tag == f"v{VERSION}" and f"## {VERSION} (unreleased)" not in (ROOT / "CHANGELOG.md").read_text():
        pytest.skip("the version has its day")
    done = subprocess.run([ROOT / ".ci" / "release", tag], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert words in done.stderr


def test_what_is_published_is_what_was_built_and_by_whom_only() -> None:
    jobs = _yaml(".github/workflows/release.yml")["jobs"]
    assert {job for job, what in jobs.items() if "id-token" in what.get("permissions", {})} == {"package"}
    assert jobs["package"]["needs"] == jobs["images"]["needs"] == "build"
    assert {jobs[job]["environment"] for job in ("package", "images")} == {"package", "images"}
    targets = jobs["images"]["strategy"]["matrix"]["target"]
    dockerfile = (ROOT / "infra" / "deploy" / "Dockerfile").read_text()
    assert [each for each in targets if f" AS {each}\n" not in dockerfile] == []


def test_what_people_write_to_us_has_a_form() -> None:
    for path in (FORGE / "ISSUE_TEMPLATE").glob("*.md"):
        head = yaml.safe_load(path.read_text().split("---\n")[1])
        assert {"name", "about", "labels"} == head.keys(), path.name
    for page in ("SECURITY.md", "CODE_OF_CONDUCT.md"):
        for link in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
            assert (ROOT / link).is_file(), link
