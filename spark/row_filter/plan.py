"""Compiles a filter for the columns of a table, and evaluates it over rows, as PostgreSQL would.

Every part has a kind before a row is seen; what has none here is refused.  Evaluation keeps the server's
order: the right side of AND and OR, and the branches of CASE and COALESCE, see only the rows that reach
them, so that ``b <> 0 AND a / b > 1`` does not fail here if it does not fail there (execExprInterp.c).

Texts compare by bytes, so an order other than that of collation "C", letters beyond ASCII in lower() and
upper(), and nondeterministic collations are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slotlake.decoder.catalog.row_filters import FilterColumn
from slotlake.spark.row_filter.flow import Typed, chosen, connected, is_known, known, strict
from slotlake.spark.row_filter.functions import FUNCTIONS, Work, cast, like_expression, lowered
from slotlake.spark.row_filter.numeric import EvaluationError, negated
from slotlake.spark.row_filter.operators import COMPARISONS, OPERATORS, ORDERINGS, in_range
from slotlake.spark.row_filter.parse import Node, TypeName, parse, refused
from slotlake.spark.row_filter.values import (
    FLOATS,
    INTEGERS,
    KINDS_BY_OID,
    TEXTS,
    Array,
    Frame,
    Vector,
    array_items,
    constant,
    kind_of,
    literal,
    nothing,
)

_LOOKED_UP = {"text", "uuid", "bytea", "date", "timestamp", "timestamptz"}
_LIKES = {"~~": (False, True), "!~~": (False, False), "~~*": (True, True), "!~~*": (True, False)}


@dataclass(frozen=True)
class Plan:
    """A filter ready to run; ``columns``: those that it looks at."""

    typed: Typed

    @property
    def columns(self) -> frozenset[str]:
        return self.typed.columns

    def matches(self, frame: Frame) -> Array:
        """bool per row; NULL is false.

        Raises:
            EvaluationError: PostgreSQL would fail on a row.
        """
        result = self.typed.run(frame)
        return np.asarray(result.values & ~result.null, np.bool_)


def plan(text: str, columns: Mapping[str, FilterColumn]) -> Plan:
    """Compile a filter.

    Args:
        text: as the server prints it (`decoder.catalog.row_filters.analysed`).

    Raises:
        PipelineFileError: it uses something that cannot be evaluated outside of the server.
    """
    compiler = Compiler(text, columns)
    node = parse(text)
    typed = compiler.compile(node)
    if typed.kind != "bool":
        raise refused("it is no condition", text, node.span)
    return Plan(typed)


@dataclass
class Compiler:
    """Gives each part its kind. ``text``: the whole filter, for errors; ``inputs``: the columns by name."""

    text: str
    inputs: Mapping[str, FilterColumn]
    heads: dict[str, Callable[[Node], Typed]] = field(init=False)

    def __post_init__(self) -> None:
        self.heads = {
            "column": self._column, "const": self._constant, "cast": self._cast, "op": self._operator,
            "call": self._call, "and": self._and, "or": self._or, "not": self._not, "is": self._is,
            "distinct": self._distinct, "any": self._any, "all": self._any, "case": self._case,
            "coalesce": self._coalesce, "nullif": self._nullif, "greatest": self._extreme,
            "least": self._extreme,
        }  # fmt: skip

    def compile(self, node: Node) -> Typed:
        """Compile one part of the filter.

        Raises:
            PipelineFileError: the part cannot be evaluated outside of the server.
        """
        if node.head not in self.heads:
            raise self._refused("it is not known here", node)
        return self.heads[node.head](node)

    def _refused(self, what: str, node: Node) -> Exception:
        return refused(what, self.text, node.span)

    # -- leaves ---------------------------------------------------------------------------------------

    def _column(self, node: Node) -> Typed:
        name = node.value or ""
        column = self.inputs.get(name)
        if column is None:
            raise self._refused(f"{name} is not among the table's published columns", node)
        kind = KINDS_BY_OID.get(column.type_oid)
        if kind is None:
            raise self._refused(f"column {name} has type {column.type_name}", node)
        return Typed(kind, lambda frame: frame.column(name), frozenset([name]))

    def _constant(self, node: Node) -> Typed:
        kind = self._kind(node.type, node)
        try:
            value = None if node.value is None else literal(kind, node.value)
        except (ValueError, KeyError, ArithmeticError):
            raise self._refused(f"a literal of type {kind} that cannot be read here", node) from None
        return Typed(kind, lambda frame: constant(kind, value, frame.size))

    def _kind(self, name: TypeName | None, node: Node) -> str:
        kind = None if name is None else kind_of(name)
        if kind is None:
            raise self._refused(f"type {name.name if name else '?'} is not known here", node)
        return kind

    def _cast(self, node: Node) -> Typed:
        part = self.compile(node.args[0])
        assert node.type is not None
        kind = self._kind(node.type, node)
        work = cast(part.kind, kind, node.type)
        if work is None:
            raise self._refused(f"the cast from {part.kind} to {node.type.name}", node)
        return strict(kind, work, [part])

    # -- operators ------------------------------------------------------------------------------------

    def _operator(self, node: Node) -> Typed:
        parts = [self.compile(arg) for arg in node.args]
        if len(parts) == 1:
            return self._prefixed(node, parts[0])
        if node.value in _LIKES:
            return self._like(node, parts[0])
        if node.value == "^@":
            node = Node("call", node.args, "starts_with", span=node.span)
            return self._call(node)
        return self._binary(node, parts[0], parts[1])

    def _binary(self, node: Node, left: Typed, right: Typed) -> Typed:
        operator = OPERATORS.get((node.value or "", left.kind, right.kind))
        if operator is None:
            raise self._refused(f"the operator {node.value} of {left.kind} and {right.kind}", node)
        if left.kind in TEXTS and node.value in COMPARISONS:
            self._collated(
                node, left.columns | right.columns, "order" if node.value in ORDERINGS else "equal"
            )
        return strict(operator[0], operator[1], [left, right])

    def _prefixed(self, node: Node, part: Typed) -> Typed:
        works: dict[str, Work] = dict.fromkeys(FLOATS, np.negative)
        works |= {kind: _negative(kind) for kind in INTEGERS}
        works["numeric"] = lambda values: np.array([negated(value) for value in values] + [None], object)[:-1]
        if node.value == "+" and part.kind in works:
            return part
        if node.value != "-" or part.kind not in works:
            raise self._refused(f"the operator {node.value} of {part.kind}", node)
        return strict(part.kind, works[part.kind], [part])

    def _collated(self, node: Node, columns: frozenset[str], ability: str) -> None:
        """Refuse what a column's collation does differently from "C"; without a column, the database's."""
        for name in sorted(columns) or [""]:
            column = self.inputs.get(name)
            if column is None or not getattr(column, ability):
                why = {
                    "order": "texts are ordered by a collation other than C",
                    "equal": "texts are compared under a nondeterministic collation",
                    "letters": "upper and lower case are those of a collation other than C",
                }[ability]
                raise self._refused(f"{why}{f' (column {name})' if name else ''}", node)

    def _like(self, node: Node, subject: Typed) -> Typed:
        folded, wanted = _LIKES[node.value or ""]
        pattern = node.args[1]
        self._collated(node, subject.columns, "letters" if folded else "equal")
        if subject.kind != "text" or pattern.head != "const" or self._kind(pattern.type, node) != "text":
            raise self._refused("LIKE of anything but a text and a constant pattern", node)
        if pattern.value is None:
            return Typed("bool", lambda frame: nothing("bool", frame.size), subject.columns)
        expression = like_expression(lowered(pattern.value) if folded else pattern.value)
        if expression is None:
            raise self._refused("the pattern ends with its escape character", node)
        match = re.compile(expression, re.DOTALL).fullmatch

        def run(values: Any) -> Array:
            texts = map(lowered, values) if folded else values
            return np.fromiter(((match(text) is not None) == wanted for text in texts), np.bool_, len(values))

        return strict("bool", run, [subject])

    def _call(self, node: Node) -> Typed:
        parts = [self.compile(arg) for arg in node.args]
        kinds = [part.kind for part in parts]
        function = FUNCTIONS.get((node.value or "", *kinds))
        if function is None:
            raise self._refused(f"the function {node.value}({', '.join(kinds)})", node)
        columns = frozenset[str]().union(*(part.columns for part in parts))
        if node.value in ("lower", "upper"):
            self._collated(node, columns, "letters")
        elif "text" in kinds:
            self._collated(node, columns, "equal")
        return strict(function[0], function[1], parts)

    # -- conditions -----------------------------------------------------------------------------------

    def _conditions(self, node: Node) -> list[Typed]:
        parts = [self.compile(arg) for arg in node.args]
        for part, arg in zip(parts, node.args, strict=True):
            if part.kind != "bool":
                raise self._refused("it is no condition", arg)
        return parts

    def _and(self, node: Node) -> Typed:
        return connected(self._conditions(node), ends_with=False)

    def _or(self, node: Node) -> Typed:
        return connected(self._conditions(node), ends_with=True)

    def _not(self, node: Node) -> Typed:
        return strict("bool", np.logical_not, self._conditions(node))

    def _is(self, node: Node) -> Typed:
        part = self.compile(node.args[0])
        word = (node.value or "").removeprefix("NOT ")
        if word in ("TRUE", "FALSE", "UNKNOWN") and part.kind != "bool":
            raise self._refused("it is no condition", node)

        def run(frame: Frame) -> Vector:
            vector = part.run(frame)
            if word in ("NULL", "UNKNOWN"):
                matches = vector.null
            else:
                matches = ~vector.null & (vector.values == (word == "TRUE"))
            return known(matches ^ (node.value != word))

        return Typed("bool", run, part.columns)

    def _distinct(self, node: Node) -> Typed:
        left, right = (self.compile(arg) for arg in node.args)
        equal = self._binary(Node("op", node.args, "=", span=node.span), left, right)

        def run(frame: Frame) -> Vector:
            one, other, same = left.run(frame), right.run(frame), equal.run(frame)
            distinct = np.where(one.null | other.null, one.null != other.null, ~same.values)
            return known(distinct ^ (node.value != "DISTINCT"))

        return Typed("bool", run, equal.columns)

    def _any(self, node: Node) -> Typed:
        """ANY and ALL of a list: as OR, or AND, of each, but the whole list is made first."""
        left, items = node.args
        elements = items.args if items.head == "array" else self._elements(items)
        is_any = node.head == "any"
        if not elements:
            return Typed("bool", lambda frame: known(np.full(frame.size, not is_any)))
        if node.value == ("=" if is_any else "<>") and all(item.head == "const" for item in elements):
            lookup = self._listed(node, self.compile(left), elements)
            if lookup is not None:
                return lookup
        tests = [Node("op", (left, item), node.value, span=node.span) for item in elements]
        return connected([self._operator(test) for test in tests], ends_with=is_any, all_run=True)

    def _listed(self, node: Node, left: Typed, items: tuple[Node, ...]) -> Typed | None:
        """A long list of constants, looked up; None for kinds whose equality is not that of their values."""
        kinds = {self._kind(item.type, item) for item in items} | {left.kind}
        if not (kinds <= set(INTEGERS) or (len(kinds) == 1 and kinds <= _LOOKED_UP)):
            return None
        if left.kind == "text":
            self._collated(node, left.columns, "equal")
        values_of_items = [
            literal(self._kind(item.type, item), item.value) for item in items if item.value is not None
        ]
        members, has_null = frozenset(values_of_items), len(values_of_items) < len(items)

        def run(frame: Frame) -> Vector:
            vector = left.run(frame)
            values = vector.values.tolist()
            is_member = np.fromiter((value in members for value in values), np.bool_, frame.size)
            return Vector(is_member == (node.head == "any"), vector.null | (has_null & ~is_member))

        return Typed("bool", run, left.columns)

    def _elements(self, node: Node) -> tuple[Node, ...]:
        if node.head != "const" or node.type is None or not node.type.array or node.value is None:
            raise self._refused("ANY or ALL of anything but a list of values", node)
        kind = TypeName(node.type.name, node.type.modifiers)
        texts = array_items(node.value)
        if texts is None:
            raise self._refused("a list that cannot be read here", node)
        return tuple(Node("const", value=text, type=kind, span=node.span) for text in texts)

    # -- choices --------------------------------------------------------------------------------------

    def _alike(self, node: Node, args: tuple[Node, ...]) -> list[Typed]:
        parts = [self.compile(arg) for arg in args]
        if len({part.kind for part in parts}) != 1:
            raise self._refused("branches of different types", node)
        return parts

    def _case(self, node: Node) -> Typed:
        conditions = self._conditions(Node("and", node.args[:-1:2], span=node.span))
        results = self._alike(node, (*node.args[1::2], node.args[-1]))
        return chosen(conditions, results)

    def _coalesce(self, node: Node) -> Typed:
        parts = self._alike(node, node.args)
        first = [Typed("bool", is_known(part), part.columns) for part in parts[:-1]]
        return chosen(first, parts)

    def _nullif(self, node: Node) -> Typed:
        left, right = (self.compile(arg) for arg in node.args)
        equal = self._binary(Node("op", node.args, "=", span=node.span), left, right)

        def run(frame: Frame) -> Vector:
            value, same = left.run(frame), equal.run(frame)
            return Vector(value.values, value.null | (same.values & ~same.null))

        return Typed(left.kind, run, equal.columns)

    def _extreme(self, node: Node) -> Typed:
        parts = self._alike(node, node.args)
        better = self._binary(
            Node("op", node.args, ">" if node.head == "greatest" else "<", span=node.span), parts[0], parts[0]
        )
        compare = OPERATORS[">" if node.head == "greatest" else "<", parts[0].kind, parts[0].kind][1]
        columns = better.columns.union(*(part.columns for part in parts))
        if parts[0].kind in TEXTS:
            self._collated(node, columns, "order")

        def run(frame: Frame) -> Vector:
            best = parts[0].run(frame)
            for part in parts[1:]:
                other = part.run(frame)
                takes = ~other.null & (best.null | compare(other.values, best.values))
                best = Vector(np.where(takes, other.values, best.values), best.null & other.null)
            return best

        return Typed(parts[0].kind, run, columns)


def _negative(kind: str) -> Work:
    return lambda values: in_range(-values.astype(object), kind)


__all__ = ["Compiler", "EvaluationError", "Plan", "plan"]
