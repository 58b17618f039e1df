"""`./slotlake test --long`: the files that have a long form, what is left, the table in CONTRIBUTING.md."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from slotlake.infra.launch import long_form
from tests.conftest import ROOT

pytestmark = pytest.mark.fast
_TEST = "import os\n\n\ndef test_it():\n    assert os.environ['SLOTLAKE_TEST_LONG'] == {!r}\n"
_PAGE = f"# Page\n\n{long_form._HEAD}| `tests/test_gone.py` | 2026-01-01 | 1 passed |\n\nThe rest.\n"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With two files that have a long form, of which the second fails, and one that has none."""
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_a.py").write_text(_TEST.format("1"))
    (folder / "test_b.py").write_text(_TEST.format("2"))
    (folder / "test_c.py").write_text("def test_it():\n    pass\n")
    (tmp_path / "CONTRIBUTING.md").write_text(_PAGE)
    monkeypatch.setattr(long_form, "CHECKOUT", tmp_path)
    return tmp_path


def _run(checkout: Path, *arguments: str) -> int:
    return long_form.run(Path(sys.executable), dict(os.environ), checkout / "cache", arguments)


@pytest.mark.seconds
def test_the_table_says_what_ran(checkout: Path) -> None:
    assert _run(checkout) == 1
    page = (checkout / "CONTRIBUTING.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert [row.split("|")[1].strip() for row in rows] == ["`tests/test_a.py`", "`tests/test_b.py`"]
    assert "1 passed" in rows[0]
    assert "1 failed" in rows[1]
    assert page.endswith("\n\nThe rest.\n")
    assert not list((checkout / "cache").iterdir())


@pytest.mark.seconds
def test_a_run_goes_on_where_it_stopped(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    real = long_form._outcome

    def interrupted(python: Path, variables: dict[str, str], path: str) -> str:
        if len(ran) == 1:
            raise KeyboardInterrupt
        ran.append(path)
        return real(python, variables, path)

    monkeypatch.setattr(long_form, "_outcome", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _run(checkout)
    assert "test_a" not in (checkout / "CONTRIBUTING.md").read_text()
    ran.append("now")

    def noted(python: Path, variables: dict[str, str], path: str) -> str:
        ran.append(path)
        return "1 passed in 0.1s"

    monkeypatch.setattr(long_form, "_outcome", noted)
    assert _run(checkout) == 0
    assert ran == ["tests/test_a.py", "now", "tests/test_b.py"]


def test_shards_have_all_files(checkout: Path) -> None:
    whole = long_form.files(ROOT)
    assert len(whole) > 90
    assert sorted(path for shard in range(3) for path in whole[shard::3]) == whole
    assert long_form.files(checkout, ["tests/test_b.py"]) == ["tests/test_b.py"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--shard", "9/8"], "K/N"), (["--shard"], "K/N"), (["--fast"], "--fast"), (["tests/no"], "tests/no")],
)
def test_what_is_not_understood(
    checkout: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert _run(checkout, *arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "usage:" in said


def test_help(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(checkout, "--help") == 0
    assert "--shard K/N" in capsys.readouterr().out


def test_an_empty_table_is_filled() -> None:
    page = f"# Page\n\n{long_form._HEAD}\n## Next\n\nWords.\n"
    filled = long_form.with_results(page, {"tests/test_x.py": ("2026-01-01", "1 passed")})
    assert filled == page.replace(
        f"{long_form._HEAD}\n", f"{long_form._HEAD}| `tests/test_x.py` | 2026-01-01 | 1 passed |\n\n"
    )


def test_the_page_has_the_table() -> None:
    assert long_form.with_results((ROOT / "CONTRIBUTING.md").read_text(), {})
