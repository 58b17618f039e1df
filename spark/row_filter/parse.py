"""Reads a row filter as PostgreSQL itself prints it once it has been analysed.

The server resolves what an expression means: names, operators, functions, and every implicit cast are its
work (`decoder/catalog/row_filters.py` asks it).  What it prints then (ruleutils.c) has each binary operation
in parentheses of its own and a type on each literal that is not a plain number or boolean, so reading it
back takes no precedence and no overload resolution.  Invariant: whatever is not understood whole is
refused with its place; nothing is guessed.

    expr     := operand [AND operand]… | operand [OR operand]… | operand op (ANY | ALL) (expr)
              | operand op operand | operand IS [NOT] (NULL | TRUE | FALSE | UNKNOWN | DISTINCT FROM operand)
    operand  := NOT operand | op operand | primary [::type]…
    primary  := (expr) | literal | column | name(expr, …) | CASE … END | ARRAY[expr, …]
              | COALESCE | NULLIF | GREATEST | LEAST (expr, …) | SUBSTRING | POSITION | TRIM (…)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NoReturn

from slotlake.decoder.errors import PipelineFileError

WAY_OUT = (
    "docs/row-filters.md lists what a filter in the lake may use; what else PostgreSQL allows can be the "
    "publication's own WHERE (server 15 or later)"
)
_TOKEN = re.compile(
    r"""\s*(?:(?P<string>E?'(?:[^'\\]|''|\\.)*')|(?P<quoted>"(?:[^"]|"")+")|(?P<number>\d+(?:\.\d*)?)"""
    r"""|(?P<word>[A-Za-z_\u0080-\U0010ffff][\w$\u0080-\U0010ffff]*)|(?P<mark>::|[()\[\],.])"""
    r"""|(?P<operator>[-+*/<>=~!@#%^&|`?]+))""",
    re.DOTALL,
)
_PLAIN_STRING = re.compile(r"\s*(?P<string>'(?:[^']|'')*')", re.DOTALL)
_VARIADIC = {"COALESCE": "coalesce", "NULLIF": "nullif", "GREATEST": "greatest", "LEAST": "least"}
_TRIMS = {"BOTH": "btrim", "LEADING": "ltrim", "TRAILING": "rtrim"}
_TESTS = ("NULL", "TRUE", "FALSE", "UNKNOWN")
_LONGER_TYPES = {
    "double": ("precision",),
    "character": ("varying",),
    "timestamp": ("without", "time", "zone"),
    "time": ("without", "time", "zone"),
    "bit": ("varying",),
}


@dataclass(frozen=True)
class TypeName:
    """A type as PostgreSQL prints it: ``character varying(10)``, ``integer[]``."""

    name: str
    modifiers: tuple[int, ...] = ()
    array: bool = False


@dataclass(frozen=True)
class Node:
    """A part of a filter.

    Attributes:
        head: column, const, cast, op, call, and, or, not, is, distinct, any, all, array, case, coalesce,
            nullif, greatest or least.
        value: the column's, operator's or function's name; a literal's text, None for NULL; what is tested.
        span: from where to where it stands in the text.
    """

    head: str
    args: tuple[Node, ...] = ()
    value: str | None = None
    type: TypeName | None = None
    span: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


def parse(text: str) -> Node:
    """The filter's tree.

    Raises:
        PipelineFileError: it holds something that cannot be evaluated outside of the server.
    """
    reader = _Reader(text)
    node = reader.expression()
    reader.end()
    return node


def refused(what: str, text: str, span: tuple[int, int]) -> PipelineFileError:
    """Return the error for a part of a filter that cannot be evaluated here.

    Args:
        span: where the part begins and ends in it, in characters.
    """
    return PipelineFileError(
        f"the filter cannot be evaluated outside of PostgreSQL: {what}",
        where=f"character {span[0] + 1}, {text[slice(*span)]}, of the filter as PostgreSQL reads it: {text}",
        way_out=WAY_OUT,
    )


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while text[at:].strip():
        # Only E'…' has escapes; in a plain literal a backslash is a backslash.
        match = _PLAIN_STRING.match(text, at) or _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise refused("a sign that is not known here", text, (at, at + 1))
        kind = match.lastgroup
        tokens.append(_Token(kind, match[kind], match.start(kind), match.end(kind)))
        at = match.end()
    return [*tokens, _Token("end", "", len(text), len(text))]


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._at = 0

    # -- tokens ---------------------------------------------------------------------------------------

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _is(self, *words: str) -> bool:
        """Return whether these keywords and signs come next, and consume them if so."""
        ahead = self._tokens[self._at : self._at + len(words)]
        if [token.text for token in ahead if token.kind in ("word", "mark")] != list(words):
            return False
        self._at += len(words)
        return True

    def _expect(self, word: str) -> None:
        if not self._is(word):
            self._refuse()

    def _unknown(self, what: str = "it is not known here") -> PipelineFileError:
        token = self._next
        return refused(what, self._text, (token.start, token.end))

    def _refuse(self, what: str = "it is not known here") -> NoReturn:
        raise self._unknown(what)

    def _spanned(self, start: int, node: Node) -> Node:
        return replace(node, span=(self._tokens[start].start, self._tokens[self._at - 1].end))

    def end(self) -> None:
        if self._next.kind != "end":
            self._refuse()

    # -- expressions ----------------------------------------------------------------------------------

    def expression(self) -> Node:
        start = self._at
        return self._spanned(start, self._tail(self._operand()))

    def _tail(self, left: Node) -> Node:
        for word in ("AND", "OR"):
            if self._is(word):
                args = [left, self._operand()]
                while self._is(word):
                    args.append(self._operand())
                return Node(word.lower(), tuple(args))
        if self._is("IS"):
            return self._test(left)
        if self._next.kind == "operator":
            operator = self._take().text
            for word in ("ANY", "ALL"):
                if self._is(word, "("):
                    node = Node(word.lower(), (left, self.expression()), operator)
                    self._expect(")")
                    return node
            return Node("op", (left, self._operand()), operator)
        return left

    def _test(self, left: Node) -> Node:
        no = "NOT " if self._is("NOT") else ""
        if self._is("DISTINCT", "FROM"):
            return Node("distinct", (left, self._operand()), no + "DISTINCT")
        for word in _TESTS:
            if self._is(word):
                return Node("is", (left,), no + word)
        raise self._unknown()

    def _operand(self) -> Node:
        start = self._at
        if self._is("NOT"):
            return self._spanned(start, Node("not", (self._operand(),)))
        if self._next.kind == "operator":
            operator = self._take().text
            return self._spanned(start, Node("op", (self._operand(),), operator))
        node = self._primary()
        while self._is("::"):
            kind = self._type()
            untyped = node.head == "const" and node.type is None
            node = replace(node, type=kind) if untyped else Node("cast", (node,), type=kind)
            node = self._spanned(start, node)
        if node.head == "const" and node.type is None:
            raise refused("a literal without a type", self._text, node.span)
        return self._spanned(start, node)

    def _primary(self) -> Node:
        start, token = self._at, self._take()
        if token.kind == "string":
            return self._spanned(start, Node("const", value=_unescaped(token.text)))
        if token.kind == "number":
            kind = "numeric" if "." in token.text else "integer"
            return self._spanned(start, Node("const", value=token.text, type=TypeName(kind)))
        if token.text == "(" and token.kind == "mark":
            node = self.expression()
            self._expect(")")
            return node
        if token.kind == "quoted":
            return self._named(token.text[1:-1].replace('""', '"'))
        if token.kind == "word":
            return self._spanned(start, self._worded(token.text))
        self._at -= 1
        raise self._unknown()

    def _worded(self, word: str) -> Node:
        if word in ("true", "false", "NULL"):
            known = word != "NULL"
            return Node("const", value=word, type=TypeName("boolean")) if known else Node("const")
        if word == "CASE":
            return self._case()
        if word == "ARRAY" and self._is("["):
            return Node("array", self._list("]"))
        if word in _VARIADIC and self._is("("):
            return Node(_VARIADIC[word], self._list(")"))
        if word in ("SUBSTRING", "POSITION", "TRIM") and self._is("("):
            return {"SUBSTRING": self._substring, "POSITION": self._position, "TRIM": self._trim}[word]()
        if word.isupper() and word.isascii():
            self._at -= 1
            self._refuse()
        return self._named(word)

    def _named(self, name: str) -> Node:
        if self._is("("):
            return Node("call", self._list(")"), name)
        if self._next.text == "." and self._next.kind == "mark":
            self._refuse("something with a schema of its own, or of another table")
        return Node("column", value=name)

    def _list(self, end: str) -> tuple[Node, ...]:
        items: list[Node] = []
        while not self._is(end):
            if items:
                self._expect(",")
            items.append(self.expression())
        return tuple(items)

    def _case(self) -> Node:
        subject = () if self._next.text == "WHEN" else (self.expression(),)
        parts: list[Node] = []
        while self._is("WHEN"):
            condition = self.expression()
            parts.append(
                Node("op", (*subject, condition), "=", span=condition.span) if subject else condition
            )
            self._expect("THEN")
            parts.append(self.expression())
        self._expect("ELSE")
        parts.append(self.expression())
        self._expect("END")
        return Node("case", tuple(parts))

    # -- functions with a grammar of their own --------------------------------------------------------

    def _substring(self) -> Node:
        args = [self.expression()]
        for word in ("FROM", "FOR"):
            if self._is(word):
                args.append(self.expression())
            elif word == "FROM":
                args.append(Node("const", value="1", type=TypeName("integer")))
        self._expect(")")
        return Node("call", tuple(args), "substring")

    def _position(self) -> Node:
        needle = self.expression()
        self._expect("IN")
        node = Node("call", (self.expression(), needle), "position")
        self._expect(")")
        return node

    def _trim(self) -> Node:
        side = self._take().text
        characters = () if self._next.text == "FROM" else (self.expression(),)
        self._expect("FROM")
        node = Node("call", (self.expression(), *characters), _TRIMS.get(side, "?"))
        self._expect(")")
        return node

    def _type(self) -> TypeName:
        token = self._take()
        if token.kind not in ("word", "quoted"):
            self._at -= 1
            self._refuse()
        name, modifiers = token.text, self._modifiers()
        if name in ("timestamp", "time") and self._is("with", "time", "zone"):
            name += " with time zone"
        elif self._is(*_LONGER_TYPES.get(name, ("",))):
            name = " ".join((name, *_LONGER_TYPES[name]))
        if self._next.text == ".":
            self._refuse("a type of the user's own")
        modifiers = modifiers or self._modifiers()
        return TypeName(name, modifiers, self._is("[", "]"))

    def _modifiers(self) -> tuple[int, ...]:
        if not self._is("("):
            return ()
        modifiers: list[int] = []
        while not self._is(")"):
            sign = -1 if self._next.text == "-" and self._take() else 1
            token = self._take()
            if token.kind == "number":
                modifiers.append(sign * int(token.text))
            elif token.text != ",":
                self._refuse()
        return tuple(modifiers)


def _unescaped(literal: str) -> str:
    if literal.startswith("E"):
        return re.sub(r"\\(.)|''", lambda m: m[1] or "'", literal[2:-1], flags=re.DOTALL)
    return literal[1:-1].replace("''", "'")
