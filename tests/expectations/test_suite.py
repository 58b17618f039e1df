"""The suite says what the reconciliation found, tells errors from inequality, and needs no network."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from slotlake.expectations import suite
from slotlake.expectations.results import Difference, Report, TableResult
from slotlake.expectations.suite import CheckError, validate

EQUAL = TableResult("public.accounts", 1_000_000, 1_000_000)
NASTY = '<script>alert("x")</script>$key'
ODD = TableResult(
    'public."O<b>"',
    5,
    6,
    {"different": 1, "extra in lake": 1},
    (Difference("different", {"id": NASTY}, ("total", "note")), Difference("extra in lake", {"id": "7"})),
)


def report(*tables: TableResult) -> Report:
    return Report("0/16B3748", {table.table: table for table in tables})


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("something connects to the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


class Links(HTMLParser):
    """What a page loads or leads to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.targets: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.targets += [value or "" for name, value in attributes if name in ("href", "src")]


def pages(validation: suite.Validation) -> list[Path]:
    return sorted(validation.data_docs.parent.rglob("*.html"))


@pytest.mark.usefixtures("no_network")
@pytest.mark.seconds
def test_the_verdict_and_every_key_are_in_pages_that_load_nothing(tmp_path: Path) -> None:
    validation = validate(report(EQUAL, ODD), tmp_path, "shop")
    assert (validation.success, validation.failed) == (False, (ODD.table,))
    (page,) = [page for page in pages(validation) if "validations" in page.parts]
    text = page.read_text()
    assert "1,000,000 rows in source, 1,000,000 in lake, all equal" in text
    assert "5 rows in source, 6 in lake; 1 different, 1 extra in lake" in text
    assert "extra in lake: id=7" in text
    assert "in total, note" in text
    for page in pages(validation):
        links = Links(page)
        assert "script" not in links.tags
        assert "link" not in links.tags
        assert "img" not in links.tags
        assert not re.search(r"https?:|//[a-z]", page.read_text())
        for target in links.targets:
            assert target.startswith("#") or (page.parent / target).resolve().is_file(), target
    assert [p for p in validation.data_docs.parent.rglob("*") if p.is_file() and p.suffix != ".html"] == []


@pytest.mark.seconds
def test_an_action_that_somebody_gave_the_checkpoint_stays(tmp_path: Path) -> None:
    """And it runs with the verdict, also of a suite that has other tables by then."""
    from great_expectations.checkpoint import UpdateDataDocsAction

    validate(report(EQUAL), tmp_path, "shop")
    context = suite.open_context(tmp_path)
    given = context.checkpoints.get("shop")
    given.actions = [*given.actions, UpdateDataDocsAction(name="mine", site_names=["local_site"])]
    given.save()
    for _ in range(2):
        assert not validate(report(EQUAL, ODD), tmp_path, "shop").success
    actions = suite.open_context(tmp_path).checkpoints.get("shop").actions
    assert [each.name for each in actions].count("mine") == 1


@pytest.mark.seconds
@pytest.mark.usefixtures("no_network")
def test_tables_may_come_and_go_and_the_history_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "RUNS_MAX", 2)
    assert validate(report(EQUAL, ODD), tmp_path, "shop").failed == (ODD.table,)
    for _ in range(2):
        validation = validate(report(EQUAL), tmp_path, "shop")
    assert validation.success
    assert validation.failed == ()
    runs = [page for page in pages(validation) if "validations" in page.parts]
    assert len(runs) == 2
    assert validation.data_docs.read_text().count("fa-check-circle text-success") == 2


@pytest.mark.seconds
def test_a_check_that_cannot_be_evaluated_is_no_inequality(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = suite._frame(report(EQUAL, ODD))
    monkeypatch.setattr(suite, "_frame", lambda _: whole.iloc[:1])
    with pytest.raises(CheckError, match="says nothing about the data") as caught:
        validate(report(EQUAL, ODD), tmp_path, "shop")
    assert ODD.table in str(caught.value)
    assert NASTY not in str(caught.value)


def test_a_damaged_folder_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "gx").mkdir()
    (tmp_path / "gx" / "great_expectations.yml").write_text(": no yaml [")
    with pytest.raises(CheckError, match="could not be evaluated"):
        validate(report(EQUAL), tmp_path, "shop")


@pytest.mark.seconds
def test_slow_imports_wait_until_they_are_needed() -> None:
    code = (
        "import sys, slotlake.expectations.reconcile, slotlake.expectations.suite\n"
        "print([m for m in ('great_expectations', 'pandas', 'pyspark', 'airflow') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"
