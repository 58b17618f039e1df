"""Every note of a pipeline is listed once: none is written past the list, and the page has them all."""

from __future__ import annotations

import re

import pytest

from slotlake.infra.state.notes import COPY_PLAN, NOTES, OWNER
from tests.conftest import ROOT

pytestmark = pytest.mark.fast
LIST = ROOT / "infra" / "state" / "notes.py"
_KEYS_OF_A_COPY = ROOT / "infra" / "copy" / "joining_record.py"  # they have numbers for names


def _texts() -> dict[str, str]:
    paths = [path for folder in ("infra", "bench") for path in (ROOT / folder).rglob("*.py")]
    return {str(path): path.read_text() for path in paths if path not in (LIST, _KEYS_OF_A_COPY)}


def test_no_note_is_written_past_the_list() -> None:
    assert [path for path, text in _texts().items() if "StateFile(" in text] == []


def test_each_is_asked_for_by_name() -> None:
    names = re.findall(r"^([A-Z_]+): Final = Note\(", LIST.read_text(), re.MULTILINE)
    assert len(names) == len(NOTES) == len({note.name for note in NOTES})
    text = "\n".join(_texts().values())
    handed_on = ["SETTLING", "SETTLING_AGAIN"]
    assert [name for name in names if not re.search(rf"\b{name}\.(of|name)\b", text)] == handed_on


def test_the_page_says_what_each_is() -> None:
    page = (ROOT / "docs" / "workers.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    shared = [note for note in NOTES if note.moves or note in (OWNER, COPY_PLAN)]
    assert rows == [(note.name, note.says, note.by, note.if_lost) for note in shared]
