"""What a release is made of says the same everywhere, and the forge's files call what is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
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


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not here")
@pytest.mark.parametrize("signed_by", ["nobody", "somebody", "one of us"])
def test_a_tag_is_signed_by_one_of_us(tmp_path: Path, signed_by: str) -> None:
    """In a clone with the day of the release; what is built after the signature is not built here."""
    keys = tmp_path / "ours", tmp_path / "theirs"
    for key in keys:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    clone, tag = tmp_path / "clone", f"v{VERSION}"
    for name in (".ci", "src/slotlake/__init__.py", "CHANGELOG.md"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, clone / name)
    log = clone / "CHANGELOG.md"
    log.write_text(log.read_text().replace(f"## {VERSION} (unreleased)", f"## {VERSION} (2026-12-01)"))
    ours = keys[0].with_suffix(".pub").read_text()
    (clone / ".ci" / "allowed_signers").write_text(f'us@example.org namespaces="git" {ours}')
    release = clone / ".ci" / "release"
    release.write_text(release.read_text().partition("rm -rf build dist")[0] + "echo built\n")

    def git(*words: str) -> None:
        own = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "gpg.format=ssh"]
        key = keys[signed_by == "somebody"]
        subprocess.run(["git", *own, "-c", f"user.signingKey={key}", *words], cwd=clone, check=True)

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "release")
    git("tag", "-a" if signed_by == "nobody" else "-s", tag, "-m", tag)
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run([release, tag], capture_output=True, text=True, check=False, env=environment)
    if signed_by == "one of us":
        assert (done.returncode, done.stdout) == (0, "built\n"), done.stderr
    else:
        assert done.returncode == 1
        assert "has no signature of somebody in .ci/allowed_signers" in done.stderr


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
