"""What the house looks like, in figures: `python -m tests.figures` prints them.

Lines, how far the argument `pipeline` goes, what modules keep at their top, small files, comments.  Read from
the source alone, with `ast` and `tokenize`; nothing is imported or run.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tests import calls as calls_of

ROOT: Final = Path(__file__).resolve().parents[1]
FLOORS: Final = ("dags", "infra", "expectations", "spark", "decoder")
_SMALL_FILE_LINES: Final = 40
_SHORT_FUNCTION_LINES: Final = 8
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
# What a module keeps as long as the process lives: containers that are filled later.
_KEEPERS: Final = frozenset({
    "dict", "list", "set", "deque", "defaultdict", "OrderedDict", "WeakKeyDictionary", "WeakValueDictionary",
    "WeakSet", "local", "ContextVar", "Remembered", "Memory",
})  # fmt: skip
_CACHES: Final = frozenset({"cache", "lru_cache"})


@cache
def modules(*folders: str) -> dict[str, ast.Module]:
    """Path from the root → tree of each module in some folders of the root."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def lines(*folders: str) -> int:
    """Lines of all modules, with blank ones and comments."""
    return sum(len((ROOT / path).read_text().splitlines()) for path in modules(*folders))


def functions(*folders: str) -> Iterator[tuple[str, _Function]]:
    """(path, function), methods included."""
    for path, tree in modules(*folders).items():
        for node in ast.walk(tree):
            if isinstance(node, _Function):
                yield path, node


def takes(function: _Function, name: str) -> bool:
    """Whether a function has an argument of this name."""
    every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return any(each.arg == name for each in every)


def takes_open_pipeline(found: tuple[str, _Function]) -> bool:
    """Whether a function has an open pipeline as an argument, and is no constructor."""
    _, function = found
    every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    types = [ast.unparse(each.annotation) for each in every if each.annotation is not None]
    return function.name != "__init__" and bool({"OpenPipeline", "Pipeline"} & set(types))


def asked_of(name: str) -> Counter[str]:
    """What is asked of an object of this name: attribute → how often, in infra."""
    return Counter(
        node.attr
        for tree in modules("infra").values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    )


def calls(name: str) -> int:
    """How often the product calls a function of this name."""
    return sum(
        isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) == name
        for tree in modules(*FLOORS).values()
        for node in ast.walk(tree)
    )


def registries() -> list[str]:
    """`path: name` of containers at the top of modules, which live as long as the process."""
    found = []
    for path, tree in modules(*FLOORS).items():
        for node in tree.body:
            value = getattr(node, "value", None) if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
            if isinstance(value, (ast.Dict, ast.List, ast.Set)) and _is_empty(value):
                found.append(f"{path}: {_target(node)}")
            if isinstance(value, ast.Call) and _last_name(value) in _KEEPERS and not value.args:
                found.append(f"{path}: {_target(node)}")
    return found


def caches() -> list[str]:
    """`path: name` of functions whose answers live as long as the process: the arguments decide them."""
    return [
        f"{path}: {node.name}"
        for path, tree in modules(*FLOORS).items()
        for node in tree.body
        if isinstance(node, _Function)
        and node.args.args
        and any(_last_name(each) in _CACHES for each in node.decorator_list)
    ]


def _is_empty(value: ast.Dict | ast.List | ast.Set) -> bool:
    return not (value.keys if isinstance(value, ast.Dict) else value.elts)


def _target(node: ast.stmt) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target  # type: ignore[attr-defined]
    return ast.unparse(target)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def small_files() -> list[str]:
    """Modules of a few lines, without `__init__.py`."""
    return [
        path
        for path in modules(*FLOORS)
        if not path.endswith("__init__.py")
        and len((ROOT / path).read_text().splitlines()) <= _SMALL_FILE_LINES
    ]


def importers() -> Mapping[str, set[str]]:
    """Module → the modules that import it."""
    names = {"slotlake." + path[:-3].replace("/", "."): path for path in modules(*FLOORS)}
    found: dict[str, set[str]] = {path: set() for path in names.values()}
    for path, tree in modules(*FLOORS).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    if name in names and names[name] != path:
                        found[names[name]].add(path)
    return found


def used_once_and_short() -> list[str]:
    """`path: name` of functions that stand in the product once more than their definition, and are short."""
    words: Counter[str] = Counter()
    for path in modules(*FLOORS):
        words.update(re.findall(r"\b\w+\b", (ROOT / path).read_text()))
    return [
        f"{path}: {function.name}"
        for path, function in functions(*FLOORS)
        if words[function.name] == 2
        and not function.decorator_list
        and (function.end_lineno or 0) - function.lineno + 1 < _SHORT_FUNCTION_LINES
    ]


def comments_per_100_lines() -> float:
    """Comments (not of tools) for each hundred lines of code, without blank lines and docstrings."""
    comments = code = 0
    for path, tree in modules(*FLOORS).items():
        documented = (
            node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS))
        )
        skipped = {
            number
            for node in documented
            if ast.get_docstring(node)
            for number in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
        }
        text = (ROOT / path).read_text()
        seen = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                comments += not re.match(r"#\s*(noqa|fmt|type|ruff|mypy|pragma)\b", token.string)
            elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
                seen |= set(range(token.start[0], token.end[0] + 1)) - skipped
        code += len(seen)
    return 100 * comments / code


def args_entries() -> tuple[int, int]:
    """Entries under `Args:`, and how many of them only repeat the name."""
    entries = empty = 0
    for _, function in functions(*FLOORS):
        text = ast.get_docstring(function) or ""
        part = re.search(r"^Args:\n((?:[ ]{4,}.*\n?)+)", text, re.MULTILINE)
        for name, words in re.findall(r"^ {4}(\w+): (.*)$", part[1] if part else "", re.MULTILINE):
            entries += 1
            empty += words.strip(" .").lower() in (f"the {name.replace('_', ' ')}", name)
    return entries, empty


def figures() -> dict[str, object]:
    """Each figure by its words."""
    (handed, above), asked = calls_of.handed_on(), asked_of("pipeline")
    infra = list(functions("infra"))
    entries, empty = args_entries()
    return {
        "lines of the product": lines(*FLOORS),
        "lines of bench": lines("bench"),
        "lines of tests": lines("tests"),
        "functions of infra": len(infra),
        "… that take `pipeline`": sum(takes(function, "pipeline") for _, function in infra),
        "… an open one, constructors left out": sum(map(takes_open_pipeline, infra)),
        "a sync reaches so many": len(calls_of.reached()),
        "… which hand `pipeline` on": handed,
        "… to a room above": above,
        "floors of infra": max(calls_of.floors().values()) + 1,
        **{f"`pipeline.{name}`": asked[name] for name in ("file", "lake", "source", "position")},
        "`open_catalog(`": calls("open_catalog"),
        "registries of modules": len(registries()),
        "cached functions with arguments": len(caches()),
        f"files of {_SMALL_FILE_LINES} lines or fewer": len(small_files()),
        "modules with one importer": sum(len(found) == 1 for found in importers().values()),
        f"functions used once, shorter than {_SHORT_FUNCTION_LINES} lines": len(used_once_and_short()),
        "comments per 100 lines of code": round(comments_per_100_lines(), 1),
        "entries under Args": entries,
        "… that repeat the name": empty,
    }


if __name__ == "__main__":
    for words, figure in figures().items():
        print(f"{words:<45} {figure:>10,}")
