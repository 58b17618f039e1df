"""Public docstrings say what a caller must know: errors, shapes, conditions; and not what the names say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.sources import ROOT, modules, tree

pytestmark = pytest.mark.fast

FLOORS = ("decoder", "spark", "expectations", "infra", "dags", "bench")
# A dtype (int64, uint8, bool) and, in the same docstring, a shape: (n,), [n], "one per row", "values", ….
_DTYPE = re.compile(r"\b(u?int(8|16|32|64)|float(32|64)|bool|bytes?)\b")
# What makes even two words worth their line: units, numbers, conditions, shapes.
_TELLING = re.compile(
    r"[\d;:,()\[\]`/]|\b(None|if|not|no|only|bytes?|seconds?|LSN|OID|index|number|within|open|unsigned"
    r"|may|must|all|each|every)\b"
)
_ARTICLES = frozenset({"the", "a", "an", "its", "this", "that", "of", "s", "it"})
_SHAPE = re.compile(
    r"\((\w+|[\w *+-]+), ?\w*\)|\[[\w +*-]+\]|\bper (row|value|message|column|change|field)\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Missing:
    """One thing that a docstring does not say."""

    path: str
    line: int
    function: str
    section: str  # "Raises:", "shapes", or an argument that says nothing


def missing(module: ast.Module, path: str) -> Iterator[Missing]:
    """Yield what the public docstrings of one module do not say.

    Args:
        module: its syntax tree.
        path: where it is, for the report.
    """
    for function in _public_functions(module.body):
        text = ast.get_docstring(function) or ""
        if not _inherits(function):
            for section in _sections(function, text):
                yield Missing(path, function.lineno, function.name, section)


def _public_functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _public_functions(node.body)
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node


def _sections(function: ast.FunctionDef, text: str) -> Iterator[str]:
    if _is_kernel(function):
        if not (_DTYPE.search(text) and _SHAPE.search(text)):
            yield "shapes"
        return
    yield from (name for name, words in _entries(text) if _says_nothing(words))
    if _raises(function) and "Raises:" not in text:
        yield "Raises:"


def _entries(text: str) -> list[tuple[str, str]]:
    """The arguments that a docstring has words on."""
    section = re.search(r"^Args:\n((?: {4,}.*\n?)+)", text, re.MULTILINE)
    return re.findall(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", section[1] if section else "", re.MULTILINE)


def _says_nothing(words: str) -> bool:
    """Whether it is two words at most, without a unit or a condition: what is said where it is used."""
    if _TELLING.search(words.rstrip(".")):
        return False
    return len([word for word in re.split(r"[\s']+", words.rstrip(".")) if word not in _ARTICLES]) <= 2


def _decorators(function: ast.FunctionDef) -> set[str]:
    calls = (d.func if isinstance(d, ast.Call) else d for d in function.decorator_list)
    return {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in calls}


def _inherits(function: ast.FunctionDef) -> bool:
    """What a library calls has the library's arguments; `--help` is made of a command's own."""
    return bool(
        _decorators(function) & {"override", "overload", "command", "callback", "task", "field_validator"}
    )


def _is_kernel(function: ast.FunctionDef) -> bool:
    return bool(_decorators(function) & {"compiled", "inlined", "njit"})


def _raises(function: ast.FunctionDef) -> bool:
    """Does its own body raise an error that is named (`raise X(…)`)?  Nested functions count as their own."""
    return any(
        isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) for node in _own_nodes(function.body)
    )


def _own_nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(node))


def everything_missing() -> list[Missing]:
    """Return what is missing in all floors, in the order of the files."""
    return [
        lack for path in modules(*FLOORS) for lack in missing(tree(path), path.relative_to(ROOT).as_posix())
    ]


def test_docstrings_say_arguments_errors_and_shapes() -> None:
    """A public function says its errors, a kernel its arrays, and no argument only what its name says."""
    assert [
        f"{lack.path}:{lack.line}: {lack.function}, {lack.section}" for lack in everything_missing()
    ] == []


@pytest.mark.parametrize(
    ("source", "section"),
    [
        ("def copy(a):\n    '''Copy.\n\n    Args:\n        a: the rows.\n    '''", "a"),
        ("def copy(a):\n    '''Copy.'''\n    if a:\n        raise ValueError(a)", "Raises:"),
        ("@njit\ndef fold(a):\n    '''Fold the keys.'''", "shapes"),
    ],
)
def test_what_is_missing_is_found(source: str, section: str) -> None:
    assert [lack.section for lack in missing(ast.parse(source), "decoder/copy/a.py")] == [section]


@pytest.mark.parametrize(
    "source",
    [
        "def _copy(a, b, c):\n    '''Copy.'''",
        "def copy(a, b, c):\n    '''Copy.'''",
        "def copy(a, b):\n    '''Copy.\n\n    Args:\n        a: bytes (n,).\n    '''",
        "def copy(a):\n    '''Copy.'''\n    def inner():\n        raise ValueError(a)\n    return inner",
        "@njit\ndef fold(a):\n    '''Fold keys: int64, one per row.'''",
        "def copy(a):\n    '''Copy.'''\n    raise",
    ],
)
def test_what_is_said_is_enough(source: str) -> None:
    assert list(missing(ast.parse(source), "decoder/copy/a.py")) == []
