"""Decides whether an analyst's SQL may run: checks each node of the parsed plan against query_allowed.py.

Invariant: what passes is one query whose every table is a table of the read point (or a name that the query
itself defines), whose every function is harmless, and in which nothing is decided later (no
``IDENTIFIER(…)``, no parameter, no statement in a string).  A node that is not in the lists is refused.

The check looks at every field of every node, not only at what Spark calls its children: a subquery, a common
table expression or a window is in a field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]

from slotlake.decoder.errors import LakeError
from slotlake.spark.read.query_allowed import (
    FUNCTIONS,
    ICEBERG_FUNCTIONS,
    INERT,
    METADATA_TABLES,
    NODES,
    WITHOUT_OPTIONS,
)
from slotlake.spark.read.query_parser import parse
from slotlake.spark.session_errors import SPARK_ERRORS, message

_GLOBAL = ("global_temp", "spark_catalog", "session", "system")
_COMMENT = r"(?:\s|--[^\n]*(?:\n|$)|/\*(?!\+)(?:(?!/\*).)*?\*/)*"
_FIRST_WORD = re.compile(rf"{_COMMENT}(\(|\w+)?", re.DOTALL)
_EXPLAIN = re.compile(
    rf"{_COMMENT}(?P<words>EXPLAIN(?:\s+(?:EXTENDED|FORMATTED|COST|CODEGEN))?"
    r"|DESC(?:RIBE)?\s+QUERY|DESC(?:RIBE)?(?=\s+(?:SELECT|WITH|VALUES)\b))(?=[\s(])",
    re.DOTALL | re.IGNORECASE,
)
_DESCRIBE = re.compile(
    rf"{_COMMENT}DESC(?:RIBE)?(?:\s+TABLE)?(?:\s+(?P<more>EXTENDED|FORMATTED))?\s+(?P<table>.+?)[\s;]*$",
    re.DOTALL | re.IGNORECASE,
)
_SELECTOR = re.compile(r"^(snapshot_id_\d+|at_timestamp_\d+|(tag|branch)_.+)$")
_TREE = "org.apache.spark.sql.catalyst.trees.TreeNode"
_WAY_OUT = (
    "ask for rows with SELECT or WITH; the lake is written by its pipeline alone, and docs/reading.md says "
    "how other engines read it"
)


@dataclass(frozen=True)
class Readable:
    """The tables that a query may read.

    Attributes:
        catalog: the lake's catalog.
        namespace: where a name without a namespace is looked up.
        tables: namespace and name of each.
        is_catalog: does Spark know a catalog of this name?
    """

    catalog: str
    namespace: str
    tables: Collection[tuple[str, str]]
    is_catalog: Callable[[str], bool] = lambda name: False

    def find(self, parts: tuple[str, ...]) -> bool:
        """Return whether a name is a table of the lake, also at another point, or one of its metadata tables.

        Raises:
            LakeError: the lake has no table of that name.
        """
        full = self._full(parts)
        if full is None:
            return False
        table, more = full[:2], full[2:]
        if table not in self.tables:
            raise LakeError(
                f"the query failed: TABLE_OR_VIEW_NOT_FOUND: this lake has no table {'.'.join(parts)}",
                where=f"catalog {self.catalog}, namespace {self.namespace}",
                way_out="tables are named as in the source (public.orders) or as in the lake (shop.orders); "
                "slotlake status lists them",
            )
        return not more or (len(more) == 1 and (more[0] in METADATA_TABLES or bool(_SELECTOR.match(more[0]))))

    def _full(self, parts: tuple[str, ...]) -> tuple[str, ...] | None:
        """Namespace, table, and what follows; None for a name that leads out of the lake's catalog."""
        if len(parts) == 1:
            return (self.namespace, *parts)
        if parts[0] == self.catalog:
            return parts[1:] if len(parts) > 2 else None
        is_namespace = any(namespace == parts[0] for namespace, _ in self.tables)
        return parts if is_namespace and parts[0] not in _GLOBAL and not self.is_catalog(parts[0]) else None


def checked_statement(java: Any, sql: str, readable: Readable) -> str:
    """Return the statement to run: the given one, or an equivalent one.

    Args:
        java: the Java that parses (`query_parser.java_view`).
        readable: the tables that it may read.

    Raises:
        LakeError: it is no query, or one that may not run; or it is not SQL.
    """
    explain = _EXPLAIN.match(sql)
    if explain:
        return (
            f"{' '.join(explain['words'].split())} {checked_statement(java, sql[explain.end() :], readable)}"
        )
    describe = _DESCRIBE.match(sql)
    if describe:
        # What stands for a table is judged as one, and must be nothing more.
        _check(java, f"TABLE {describe['table']}", readable)
        return f"DESCRIBE TABLE {describe['more'] or ''} {describe['table']}"
    _check(java, sql, readable)
    return sql


def _check(java: Any, sql: str, readable: Readable) -> None:
    try:
        plan = parse(java, sql)
    except SPARK_ERRORS as error:
        raise _not_parsed(sql, message(error)) from None
    if plan is None:
        raise _refused_statement(sql)
    plan_check = _PlanCheck(java, readable, sql)
    unchecked = [(plan, _NO_NAMES)]
    while unchecked:  # not by recursion: a condition of a thousand parts is a thousand nodes deep
        unchecked += plan_check.children(*unchecked.pop())


_NO_NAMES: frozenset[str] = frozenset()
_Child = tuple[Any, frozenset[str]]  # what a node holds, and the names of queries that can be used there


class _PlanCheck:
    """Judges one value of a plan at a time, and says what it holds."""

    def __init__(self, java: Any, readable: Readable, sql: str) -> None:
        self.readable, self.sql = readable, sql
        self._is_a = java.py4j.reflection.TypeUtil.isInstanceOf
        self._kinds: dict[str, str] = {}

    def children(self, value: Any, names: frozenset[str]) -> Iterator[_Child]:
        """What a value holds that is to be judged too.

        Raises:
            LakeError: the value itself may not stand in a query.
        """
        if not isinstance(value, JavaObject):  # a text, a number, nothing
            return
        class_name = value.getClass().getName()
        kind = self._kind(class_name, value)
        if kind == "node":
            yield from self._node(_short(class_name), value, names)
        elif kind == "many":
            elements = value.iterator()
            while elements.hasNext():
                yield elements.next(), names
        elif kind == "product":
            yield from self._fields(value, names)

    def _kind(self, class_name: str, value: Any) -> str:
        if class_name not in self._kinds:
            self._kinds[class_name] = self._checked_kind(class_name, value)
        return self._kinds[class_name]

    def _checked_kind(self, class_name: str, value: Any) -> str:
        if self._is_a(_TREE, value):
            if _plain(class_name) not in NODES:
                raise _refused_node(self.sql, _short(class_name))
            return "node"
        if not class_name.startswith(INERT):
            raise _refused_node(self.sql, _short(class_name))
        if self._is_a("scala.collection.Iterable", value):
            return "many"
        return "product" if self._is_a("scala.Product", value) else "word"

    def _node(self, name: str, value: Any, names: frozenset[str]) -> Iterator[_Child]:
        if name in _TABLE_NODES:
            self._table(name, value, names)
        elif name == "UnresolvedNamespace":
            self._namespace(_texts(value.productElement(0)))
        elif name == "UnresolvedWith":
            yield from self._with(value, names)
        elif name not in _VALUES:
            if name in _FUNCTION_NODES:
                self._function(_function_name(name, value), value)
            yield from self._fields(value, names)

    def _fields(self, value: Any, names: frozenset[str]) -> Iterator[_Child]:
        for number in range(value.productArity()):
            yield value.productElement(number), names

    def _with(self, value: Any, names: frozenset[str]) -> Iterator[_Child]:
        """WITH: each query sees those before it, and itself if it is recursive; the body sees all."""
        named, recursive = value.cteRelations().iterator(), value.allowRecursion()
        while named.hasNext():
            entry = named.next()
            own = frozenset([entry.productElement(0).lower()])
            yield entry.productElement(1), names | own if recursive else names
            names |= own
        yield value.child(), names

    def _table(self, name: str, value: Any, names: frozenset[str]) -> None:
        parts = _texts(value.productElement(0))
        if name == "UnresolvedRelation" and (value.isStreaming() or not value.options().isEmpty()):
            raise _refused_node(self.sql, "STREAM, or options behind a table's name")
        if len(parts) == 1 and parts[0].lower() in names:
            return
        if not self.readable.find(parts):
            raise LakeError(
                "only this lake's tables can be read here", where=f"table {'.'.join(parts)}", way_out=_WAY_OUT
            )

    def _namespace(self, parts: tuple[str, ...]) -> None:
        inside = parts[1:] if parts[:1] == (self.readable.catalog,) else parts
        if len(inside) > 1 or (inside and not any(inside[0] == each for each, _ in self.readable.tables)):
            raise LakeError("only this lake can be read here", where=".".join(parts), way_out=_WAY_OUT)

    def _function(self, parts: tuple[str, ...], value: Any) -> None:
        *place, name = parts
        of_iceberg = place in (["system"], [self.readable.catalog, "system"])
        if name.lower() in (FUNCTIONS if not place else ICEBERG_FUNCTIONS if of_iceberg else ()):
            return
        if not place and int(value.productElement(1).size()) <= WITHOUT_OPTIONS.get(name.lower(), -1):
            return
        raise LakeError(
            f"the function {'.'.join(parts)} cannot be called here",
            where="it is unknown, or may read files, run code or reach other machines",
            way_out="use Spark SQL's other functions",
        )


_TABLE_NODES = ("UnresolvedRelation", "UnresolvedTableOrView", "UnresolvedTable")
_FUNCTION_NODES = ("UnresolvedFunction", "UnresolvedTableValuedFunction", "UnresolvedGenerator")
_VALUES = ("Literal", "LocalRelation")


def _plain(class_name: str) -> str:
    """Without what Scala adds to an object's class, and to a variant of a class."""
    return class_name.partition("$$anon$")[0].rstrip("$")


def _short(class_name: str) -> str:
    return _plain(class_name).rpartition(".")[2]


def _texts(sequence: Any) -> tuple[str, ...]:
    return tuple(sequence.apply(number) for number in range(sequence.size()))


def _function_name(node: str, value: Any) -> tuple[str, ...]:
    named = value.productElement(0)
    if node != "UnresolvedGenerator":
        return _texts(named)
    place = (part.get() for part in (named.catalog(), named.database()) if part.isDefined())
    return (*place, named.funcName())


def _refused_node(sql: str, what: str) -> LakeError:
    return LakeError(
        f"only queries can be run here, and none with {what}",
        where=f"a statement beginning with {_first_word(sql)!r}",
        way_out=_WAY_OUT,
    )


def _refused_statement(sql: str) -> LakeError:
    return LakeError(
        "only queries can be run here",
        where=f"a statement beginning with {_first_word(sql)!r}",
        way_out=_WAY_OUT,
    )


def _not_parsed(sql: str, words: str) -> LakeError:
    """What Spark's common parser does not know: a mistake in a query, or a statement of another kind."""
    if _first_word(sql).upper() not in _QUERY_WORDS or "is not supported" in words or "UNSUPPORTED" in words:
        return _refused_statement(sql)
    return LakeError(f"the query failed: {words}", where="in its text", way_out=_WAY_OUT)


_QUERY_WORDS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(")


def _first_word(sql: str) -> str:
    match = _FIRST_WORD.match(sql)
    return (match[1] or "")[:20] if match else ""
