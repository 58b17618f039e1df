# ruff: noqa: E501  (a kind of expression is read as a line)
"""Random expressions of the subset that a filter in the lake may use, and a table for them."""

from __future__ import annotations

import random
from collections.abc import Callable

COLUMNS = {
    "i2": "smallint", "i4": "integer", "i8": "bigint", "f4": "real", "f8": "double precision", "n": "numeric",
    "m": "numeric(8,2)", "t": "text", "v": "varchar(6)", "c": "character(4)", "b": "boolean", "d": "date",
    "ts": "timestamp", "tz": "timestamptz", "u": "uuid", "y": "bytea",
}  # fmt: skip
VALUES = {
    "i2": ["0", "1", "-1", "32767", "-32768", "7"],
    "i4": ["0", "1", "-3", "2147483647", "-2147483648", "10"],
    "i8": ["0", "5", "-7", "9223372036854775807", "-9223372036854775808"],
    "f4": ["0", "1.5", "-2.25", "NaN", "Infinity", "-Infinity", "3.4e38", "1e-40", "-0", "0.1"],
    "f8": ["0", "1.5", "2.5", "-3.5", "NaN", "Infinity", "1e308", "1e-310", "0.1", "123456.789", "1e20"],
    "n": ["0", "1", "-1.50", "2.500", "NaN", "Infinity", "1e30", "0.0001", "123456789012345678901234567890.12345", "-0.05", "99.995", "7", "0.00"],
    "m": ["0", "1.50", "-12.34", "NaN", "999999.99", "3.00"],
    "t": ["", "a", "A", "ab", "aB%", "_x", "é", "Zz", " pad ", "a\\b", "10", "x\t", "a\nb", '{a,"b"}', "NULL"],
    "v": ["", "a", "abc", "ABCDEF", "x y"],
    "c": ["", "a", "ab", "A b", "zz", "a\t"],
    "b": ["t", "f"],
    "d": ["2024-02-29", "2000-01-01", "infinity", "-infinity", "0044-03-15 BC", "99999-12-31", "1999-12-31", "5874897-12-31"],
    "ts": ["2024-02-29 12:30:45.123456", "2000-01-01", "infinity", "-infinity", "0044-03-15 10:00 BC", "99999-12-31 23:59:59.999999", "1999-12-31 23:59:59.5"],
    "tz": ["2024-02-29 12:30:45.123456+02", "2000-01-01+00", "infinity", "-infinity", "0044-03-15 10:00+00 BC"],
    "u": ["00000000-0000-0000-0000-000000000001", "ffffffff-0000-0000-0000-00000000000a"],
    "y": ["\\x", "\\x00", "\\xff00", "\\x6162"],
}  # fmt: skip
FAMILIES = {
    "integer": ["i2", "i4", "i8"], "float": ["f4", "f8"], "numeric": ["n", "m"], "text": ["t", "v"], "char": ["c"],
    "bool": ["b"], "date": ["d"], "timestamp": ["ts"], "timestamptz": ["tz"], "uuid": ["u"], "bytea": ["y"],
}  # fmt: skip
_TYPES = {"integer": "int8", "float": "float8", "char": "bpchar"}
_PATTERNS = ["a%", "%b", "_", "%", "a\\\\%", "A_", "%é%", "", "%\\n%", "_\\t"]


class Expressions:
    """A stream of them; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def _one(self, *choices: str) -> str:
        return self.random.choice(choices)

    def literal(self, family: str) -> str:
        column = self._one(*FAMILIES[family])
        value = self._one(*VALUES[column]).replace("'", "''")
        kind = COLUMNS[column] if family in ("integer", "float") else _TYPES.get(family, family)
        return f"'{value}'::{kind}"

    def value(self, family: str, depth: int) -> str:
        if depth <= 0 or self.random.random() < 0.4:
            if self.random.random() < 0.7:
                return self._one(*FAMILIES[family])
            return (
                self.literal(family) if self.random.random() < 0.9 else f"NULL::{_TYPES.get(family, family)}"
            )
        if family == "bool":
            return self.condition(depth - 1)

        def s(other: str = family) -> str:
            return self.value(other, depth - 1)

        return self.random.choice([*self._of(family, s), *self._choices(s, depth)])()

    def _choices(self, s: Callable[[], str], depth: int) -> list[Callable[[], str]]:
        return [
            lambda: f"coalesce({s()}, {s()})",
            lambda: f"nullif({s()}, {s()})",
            lambda: f"case when {self.condition(depth - 1)} then {s()} else {s()} end",
            lambda: f"case {s()} when {s()} then {s()} else {s()} end",
            lambda: f"{self._one('greatest', 'least')}({s()}, {s()}, {s()})",
        ]

    def _of(self, family: str, s: Callable[..., str]) -> list[Callable[[], str]]:
        one, number = self._one, self.random.randint
        return {
            "integer": [
                lambda: f"({s()} {one(*'+-*/%')} {s()})", lambda: f"(- {s()})", lambda: f"abs({s()})",
                lambda: f"mod({s()}, {s()})", lambda: f"length({s('text')})", lambda: f"char_length({s('char')})",
                lambda: f"({s(one('numeric', 'float', 'integer'))})::{one('int', 'bigint', 'smallint')}",
                lambda: f"position({s('text')} in {s('text')})", lambda: f"({s('bool')})::int",
                lambda: f"octet_length({s(one('text', 'bytea', 'char'))})", lambda: f"({s('date')} - {s('date')})",
            ],
            "float": [
                lambda: f"({s()} {one(*'+-*/')} {s()})", lambda: f"(- {s()})", lambda: f"abs({s()})",
                lambda: f"({s('numeric')})::float8", lambda: f"({s('integer')})::{one('float4', 'float8')}",
                lambda: f"{one('ceil', 'floor', 'round', 'trunc')}({s()})", lambda: f"({s()})::{one('float4', 'float8')}",
            ],
            "numeric": [
                lambda: f"({s()} {one(*'+-*/%')} {s()})", lambda: f"({s()} / {s()})", lambda: f"(- {s()})",
                lambda: f"({s(one('integer', 'float'))})::numeric", lambda: f"{one('round', 'trunc')}({s()}, {number(-3, 5)})",
                lambda: f"{one('ceil', 'floor', 'abs', 'round', 'trunc')}({s()})",
                lambda: f"({s()})::numeric({number(3, 12)}, {number(0, 3)})", lambda: f"mod({s()}, {s()})",
            ],
            "text": [
                lambda: f"({s()} || {s()})", lambda: f"{one('lower', 'upper')}({s()})",
                lambda: f"substring({s()} from {number(-2, 4)} for {number(-1, 4)})", lambda: f"substr({s()}, {number(-2, 4)})",
                lambda: f"{one('left', 'right')}({s()}, {number(-3, 4)})", lambda: f"{one('btrim', 'ltrim', 'rtrim')}({s()})",
                lambda: f"trim({one('both', 'leading', 'trailing')} {s()} from {s()})", lambda: f"replace({s()}, {s()}, {s()})",
                lambda: f"({s(one('integer', 'bool', 'numeric', 'char', 'uuid'))})::text", lambda: f"({s()})::varchar({number(1, 4)})",
            ],
            "char": [lambda: f"({s()})::character({number(1, 5)})", lambda: f"({s('text')})::bpchar"],
            "date": [lambda: f"({s()} + {one('1', '-1', 'i4')})", lambda: f"({s()} - 3)", lambda: f"({s('timestamp')})::date"],
            "timestamp": [lambda: f"({s('date')})::timestamp"],
        }.get(family, [])  # fmt: skip

    def condition(self, depth: int) -> str:
        chance = self.random.random()
        if depth > 0 and chance < 0.35:
            return f"({self.condition(depth - 1)} {self._one('and', 'or')} {self.condition(depth - 1)})"
        if depth > 0 and chance < 0.42:
            return f"(not {self.condition(depth - 1)})"
        if depth > 0 and chance < 0.48:
            tested = self._one("true", "false", "unknown")
            return f"({self.condition(depth - 1)} is {self._one('', 'not ')}{tested})"
        return self._test(self._one(*FAMILIES), depth - 1)

    def _test(self, family: str, depth: int) -> str:
        one = self._one

        def v(other: str = family) -> str:
            return self.value(other, depth)

        def listed() -> str:
            return ", ".join(self.literal(family) for _ in range(self.random.randint(1, 4))) + one(
                "", ", NULL"
            )

        compared = one("=", "<>", "<", "<=", ">", ">=")
        tests: list[Callable[[], str]] = [
            lambda: f"({v()} {compared} {v()})",
            lambda: f"({v()} {compared} {v()})",
            lambda: f"({v()} {compared} {v()})",
            lambda: f"({v()} is {one('', 'not ')}null)",
            lambda: f"({v()} is {one('', 'not ')}distinct from {v()})",
            lambda: f"({v()} {one('', 'not ')}in ({listed()}))",
            lambda: f"({v()} {compared} {one('any', 'all')}(array[{v()}, {v()}]))",
            lambda: f"({v()} between {v()} and {v()})",
            lambda: f"({v('text')} {one('', 'not ')}{one('like', 'ilike')} E'{one(*_PATTERNS)}')",
            lambda: f"starts_with({v('text')}, {v('text')})",
            lambda: f"({v('date')} {compared} {v('timestamp')})",
            lambda: f"({v('integer')} {compared} {v('numeric')})",
        ]  # fmt: skip
        return self.random.choice(tests)()
