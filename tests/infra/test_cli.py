"""What the command answers without a pipeline."""

from __future__ import annotations

import pytest

from slotlake import VERSION
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
