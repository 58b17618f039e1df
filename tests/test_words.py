"""Errors in words: each says what, where and how to go on, and no way out leads back to the same."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotlake.decoder import errors
from slotlake.decoder.errors import ProtocolError, SlotlakeError
from slotlake.decoder.server.refusals import meaning_of
from tests.sources import ROOT, modules, tree

pytestmark = pytest.mark.fast

FOLDERS = ("decoder", "spark", "expectations", "infra", "dags")
# They say for themselves where and how to go on.
_BY_ITSELF = {"ProtocolError", "ConsumerError", "BulkError"}
_KINDS = {
    name
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, SlotlakeError) and name not in _BY_ITSELF
} | {"HiddenNumbersError"}
_BANNED = {
    r"see the server's message above": "say what it means (decoder/server/refusals.py)",
    r"\btry again\b": "say what is to change before",
    r"(?i)something went wrong|unexpected error|an error occurred": "say what",
}
# Of the stream's or a file's bytes only.
_DAMAGED_STREAM = re.compile("the stream is damaged")
STATES = [
    "08006", "0A000", "22021", "25006", "25P03", "25P04", "28P01", "3D000", "40001", "40P01",
    "42501", "42P01", "53000", "53100", "53200", "53300", "53400", "54000", "55P03", "57014",
    "57P01", "57P03", "57P04", "58030", "58P01", "99999", "XX000", "XX001", None,
]  # fmt: skip


def _modules() -> list[tuple[Path, ast.Module]]:
    return [(path, tree(path)) for path in modules(*FOLDERS)]


def _calls(module: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node, node.func.id


def test_every_error_is_made_with_its_place_and_a_way_out() -> None:
    lacking = []
    for path, module in _modules():
        for call, name in _calls(module):
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            if name not in _KINDS or None in given:  # ** gives what another has
                continue
            for needed in ("where", "way_out"):
                value = given.get(needed)
                if value is None or (isinstance(value, ast.Constant) and not value.value):
                    lacking.append(f"{path.relative_to(ROOT)}:{call.lineno} {name} lacks {needed}")
    assert lacking == []


@pytest.mark.parametrize("words", _BANNED)
def test_words_that_help_nobody(words: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, module in _modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(words, node.value)
    ]
    assert found == [], _BANNED[words]


def test_a_value_or_a_defect_is_no_damaged_stream() -> None:
    assert _DAMAGED_STREAM.search(ProtocolError("the message ends too early").way_out)
    of_a_table = ProtocolError("text that is not an integer").of("public", "t")
    assert not _DAMAGED_STREAM.search(str(of_a_table))
    assert "tables.<name>.columns" in of_a_table.way_out
    kept = ProtocolError("x", way_out="y").of("public", "t").at(100)
    assert (kept.way_out, kept.table, kept.lsn) == ("y", ("public", "t"), 100)
    assert not _DAMAGED_STREAM.search(errors.DEFECT)


@pytest.mark.parametrize("state", STATES)
def test_every_sqlstate_has_a_way_out(state: str | None) -> None:
    meaning = meaning_of(state)
    assert meaning.what
    assert len(meaning.way_out) > 30
    if meaning.kind.retryable:
        assert "same command again" in meaning.way_out
    else:
        assert "run the same command again" not in meaning.way_out, "it would be refused again"
