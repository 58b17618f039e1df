# ruff: noqa: E501  (a table, or a statement, is read as a line)
"""The tables of the matrix: one for each kind of key and identity, with values at and around every limit."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Draw = Callable[[random.Random], str]


def _among(*values: str) -> Draw:
    return lambda chance: chance.choice(values)


def _near(*values: str, otherwise: Draw) -> Draw:
    """One of the values, which lie at limits, or another one."""
    return lambda chance: chance.choice(values) if chance.random() < 0.8 else otherwise(chance)


def _digits(digits: int, scale: int = 0) -> Draw:
    """A number of so many digits, of which ``scale`` are after the point; its last digits move at the limits."""
    top = 10**digits - 1

    def draw(chance: random.Random) -> str:
        number = chance.choice(
            (
                0,
                1,
                -1,
                top,
                top - 1,
                1 - top,
                -top,
                top // 2,
                top // 2 + 1,
                chance.randint(-top, top),
                *tuple(
                    sign * (10**power + more)
                    for power in _powers(digits)
                    for sign in (1, -1)
                    for more in (-1, 0, 1)
                ),
            )
        )
        text = str(abs(number)).rjust(scale + 1, "0")
        text = f"{text[:-scale]}.{text[-scale:]}" if scale else text
        return f"-{text}" if number < 0 else text

    return draw


def _powers(digits: int) -> list[int]:
    """Where a decimal's storage changes (9, 18 digits), and where arithmetic is often cut (16, 28)."""
    return [power for power in (9, 15, 16, 18, 28, 29, 37) if power < digits]


def _integer(bits: int) -> Draw:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    limits = [str(number) for number in (low, low + 1, -1, 0, 1, high - 1, high)]
    return _near(*limits, otherwise=lambda chance: str(chance.randint(low, high)))


def _float(*limits: str) -> Draw:
    return _near(
        "NaN", "Infinity", "-Infinity", "0", "-0", "0.1", "-1.5", "1e15", "1e16", "16777217", *limits,
        otherwise=lambda chance: repr(chance.uniform(-1e6, 1e6)),
    )  # fmt: skip


INT2, INT4, INT8 = _integer(16), _integer(32), _integer(64)
FLOAT4 = _float("3.4028235e38", "-3.4028235e38", "1e-45", "1.1754944e-38")
FLOAT8 = _float("1.7976931348623157e308", "-1.7976931348623157e308", "5e-324", "2.2250738585072014e-308")
# A manifest cuts texts after 16 characters and counts an upper bound up; there is nothing above the last two.
TEXT = _near(
    "", " ", "a", "a" * 15, "a" * 16, "a" * 17, "a" * 16 + "b", "a" * 15 + "b", "a" * 40, "\x01", "~" * 17,
    "\x7f" * 17, "größe", "ÿ" * 17, "\ud7ff" * 17, "\ue000" * 16 + "x", "\uffff" * 17, "😀" * 17, "😀" * 16,
    "\U0010ffff" * 16, "\U0010ffff" * 17, "\U0010ffff" * 17 + "a", "it's `q` \\ \"q\"", "a\nb\tc", "NULL", "NaN",
    otherwise=lambda chance: "".join(chance.choice("ab~ü\uffff😀") for _ in range(chance.randint(1, 20))),
)  # fmt: skip
BYTEA = _near(
    "\\x", "\\x00", "\\x0000", "\\x7f", "\\x80", "\\xff", "\\x00ff", "\\x" + "ff" * 15, "\\x" + "ff" * 16,
    "\\x" + "ff" * 17, "\\x" + "ff" * 16 + "00", "\\x" + "00" * 17, "\\x" + "61" * 16 + "ff",
    otherwise=lambda chance: "\\x" + chance.randbytes(chance.randint(1, 18)).hex(),
)  # fmt: skip
DATE = _near(
    "4714-11-24 BC", "0001-12-31 BC", "0001-01-01", "1582-10-04", "1582-10-15", "1969-12-31", "1970-01-01",
    "1970-01-02", "1900-02-28", "2000-02-29", "9999-12-31", "10000-01-01", "5874897-12-31", "infinity", "-infinity",
    otherwise=lambda chance: f"{chance.randint(1, 9999):04}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}",
)  # fmt: skip
_TIMES = (
    "4714-11-24 00:00:00{} BC", "0001-12-31 23:59:59.999999{} BC", "0001-01-01 00:00:00{}",
    "1969-12-31 23:59:59.999999{}", "1969-12-31 23:00:00{}", "1970-01-01 00:00:00{}", "1970-01-01 00:00:00.000001{}",
    "1677-09-21 00:12:43.145224{}", "2262-04-11 23:47:16.854776{}", "9999-12-31 23:59:59.999999{}",
    "10000-01-01 00:00:00{}", "294276-12-31 23:59:59.999999{}",
)  # fmt: skip


def _time(zone: str) -> Draw:
    return _near(
        *(each.format(zone) for each in _TIMES), "infinity", "-infinity",
        otherwise=lambda chance: f"{chance.randint(1, 9999):04}-0{chance.randint(1, 9)}-15 12:00:00"
        f".{chance.randint(0, 999999):06}{zone}",
    )  # fmt: skip


TIMESTAMP, TIMESTAMPTZ = _time(""), _time("+00")
TIME = _near(
    "00:00:00", "24:00:00", "23:59:59.999999", "12:00:00.5", otherwise=_among("01:02:03", "04:05:06.7")
)
UUID = _near(
    "00000000-0000-0000-0000-000000000000", "7fffffff-ffff-ffff-ffff-ffffffffffff",
    "80000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff",
    otherwise=lambda chance: f"{chance.getrandbits(32):08x}-0000-4000-8000-{chance.getrandbits(48):012x}",
)  # fmt: skip
BOOL = _among("t", "f")
NUMERIC = _near(
    "0", "0.0", "1", "1.0", "1.00", "-1", "NaN", "Infinity", "-Infinity", "1e-20", "1e30", "9" * 40,
    "9" * 28 + ".5", "-" + "9" * 29, "0." + "0" * 37 + "1", otherwise=_digits(30, 4),
)  # fmt: skip
JSON = _among('{"a": 1}', '{"a": 1.0}', "[]", "null", '"x"', "1", "{}", '{"b": [1, 2], "a": null}')
ARRAY = _among("{}", "{1}", "{1,NULL}", "{-2147483648,2147483647}", "{{1,2},{3,4}}")
INTERVAL = _among("0", "1 day", "24:00:00", "-1 mon", "1 year 2 mons -3 days +04:05:06.7")
INET = _among("0.0.0.0", "10.0.0.1", "10.0.0.0/8", "255.255.255.255", "::", "2001:db8::1")


@dataclass(frozen=True)
class Kind:
    """A table.

    Attributes:
        key: what names a row → its type and values; empty: nothing names a row.
        payload: the other columns, likewise; `v` and `big` are there besides.
        after: what is said after CREATE TABLE; ``{t}`` is the table.
        key_sql: the constraint of the key.
        settings: what the pipeline file says of it.
        insert_only: changes and deletions of its rows are not sent.
        shifts: its columns come and go; what is done to it is in `histories`.
    """

    name: str
    key: Mapping[str, tuple[str, Draw]]
    payload: Mapping[str, tuple[str, Draw]] = field(default_factory=dict)
    after: str = ""
    key_sql: str = "PRIMARY KEY ({key})"
    settings: str = ""
    insert_only: bool = False
    partitioned: bool = False
    shifts: bool = False

    @property
    def has_key(self) -> bool:
        """Whether a row is named by some of its columns."""
        return bool(self.key_sql)

    @property
    def columns(self) -> dict[str, tuple[str, Draw]]:
        return {**self.key, "v": ("text", TEXT), "big": ("text", _BIG), **self.payload}

    def create(self) -> str:
        """SQL that makes the table."""
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in self.columns.items())
        key = f", {self.key_sql.format(key=', '.join(self.key))}" if self.key_sql else ""
        parted = " PARTITION BY RANGE (k)" if self.partitioned else " WITH (fillfactor = 10)"
        return (
            f"CREATE TABLE {self.name} ({columns}{key}){parted};"
            + self.after.format(t=self.name)
            + f"ALTER TABLE {self.name} ALTER big SET STORAGE EXTERNAL;"
        )

    def row(self, chance: random.Random) -> dict[str, str | None]:
        """A drawn row; what is not part of the key may be NULL."""
        return {
            name: None if name not in self.key and chance.random() < 0.15 else draw(chance)
            for name, (_, draw) in self.columns.items()
        }


def _big(chance: random.Random) -> str:
    """A value of its own in TOAST, mostly; repeated rarely, so that two of them differ."""
    return "short" if chance.random() < 0.3 else f"{chance.random()}" * 160


_BIG: Draw = _big


def _one(name: str, kind: str, draw: Draw, **payload: tuple[str, Draw]) -> Kind:
    return Kind(name, {"k": (kind, draw)}, payload)


_FEW = _among(*map(str, range(1, 9)))
_FULL = "ALTER TABLE {t} REPLICA IDENTITY FULL;"
_KINDS: Sequence[Kind] = (
    _one("k_int2", "int2", INT2, p=("float4", FLOAT4), q=("date", DATE)),
    _one("k_int4", "int4", INT4, p=("bytea", BYTEA), q=("numeric(38,0)", _digits(38))),
    _one("k_int8", "int8", INT8, p=("timestamptz", TIMESTAMPTZ), q=("numeric(38,38)", _digits(38, 38))),
    _one("k_oid", "oid", _among("0", "1", "2147483647", "2147483648", "4294967295"), p=("float8", FLOAT8)),
    _one("k_num9", "numeric(9,2)", _digits(9, 2), p=("bool", BOOL), q=("int2", INT2)),
    _one("k_num18", "numeric(18,4)", _digits(18, 4), p=("uuid", UUID)),
    _one("k_num19", "numeric(19,0)", _digits(19), p=("time", TIME)),
    _one("k_num29", "numeric(29,1)", _digits(29, 1), p=("numeric(28,28)", _digits(28, 28))),
    _one("k_num38", "numeric(38,0)", _digits(38), p=("int8", INT8)),
    _one("k_num3810", "numeric(38,10)", _digits(38, 10), p=("numeric", NUMERIC)),
    _one("k_numeric", "numeric", NUMERIC, p=("numeric(38,9)", _near("NaN", otherwise=_digits(38, 9)))),
    _one("k_float4", "float4", FLOAT4, p=("timestamp", TIMESTAMP)),
    _one("k_float8", "float8", FLOAT8, p=("jsonb", JSON)),
    _one("k_text", 'text COLLATE "C"', TEXT, p=("date", DATE)),
    _one("k_char", "char(20)", _near("", "a" * 20, "ÿ" * 20, "😀" * 17, otherwise=_among("a", "b")), p=("int4", INT4)),
    _one("k_bytea", "bytea", BYTEA, p=("float8", FLOAT8)),
    _one("k_uuid", "uuid", UUID, p=("timestamptz", TIMESTAMPTZ)),
    _one("k_date", "date", DATE, p=("float4", FLOAT4)),
    _one("k_timestamp", "timestamp", TIMESTAMP, p=("bytea", BYTEA)),
    _one("k_timestamptz", "timestamptz", TIMESTAMPTZ, p=("interval", INTERVAL)),
    _one("k_time", "time", TIME, p=("inet", INET)),
    _one("k_jsonb", "jsonb", JSON, p=("int4[]", ARRAY)),
    _one("k_array", "int4[]", ARRAY, p=("timestamp(0)", _among("2026-01-01 00:00:00", "1969-12-31 23:59:59.5"))),
    _one("k_interval", "interval", _among("0", "1 day", "-1 mon", "1 year"), p=("numeric(5,-2)", _among("12300", "-0"))),
    Kind("k_bool", {"k": ("bool", BOOL), "k2": ("text", TEXT)}),
    Kind("k_pair", {"k": ("numeric(38,0)", _digits(38)), "k2": ("text", TEXT)}, {"p": ("date", DATE)}),
    Kind("k_triple", {"k": ("date", DATE), "k2": ("int2", INT2), "k3": ("bytea", BYTEA)}),
    Kind("by_index", {"k": ("numeric(38,2)", _digits(38, 2))}, {"p": ("int4", INT4)}, key_sql="",
         after="ALTER TABLE {t} ALTER k SET NOT NULL; CREATE UNIQUE INDEX {t}_k ON {t} (k);"
               "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_k;"),
    Kind("full_key", {"k": ("int8", INT8)}, {"p": ("numeric(38,0)", _digits(38)), "q": ("float8", FLOAT8)}, after=_FULL),
    Kind("bag", {"k": ("numeric(30,2)", _digits(30, 2))}, {"p": ("timestamptz", TIMESTAMPTZ), "q": ("float8", FLOAT8)},
         after=_FULL, key_sql=""),
    Kind("bag_exact", {"k": ("numeric(30,2)", _digits(30, 2))}, {"p": ("timestamptz", TIMESTAMPTZ), "q": ("bytea", BYTEA)},
         after=_FULL, key_sql=""),
    Kind("only_new", {"k": ("int4", INT4)}, {"p": ("numeric(38,0)", _digits(38))}, key_sql="", insert_only=True,
         after="ALTER TABLE {t} REPLICA IDENTITY NOTHING;"),
    Kind("emptied", {"k": ("int4", INT4)}, {"p": ("date", DATE)}),
    Kind("parted", {"k": ("int8", INT8)}, {"p": ("date", DATE)}, partitioned=True, after=(
        "CREATE TABLE {t}_low PARTITION OF {t} FOR VALUES FROM (MINVALUE) TO (0);"
        "CREATE TABLE {t}_high PARTITION OF {t} FOR VALUES FROM (0) TO (MAXVALUE);")),
    Kind("laid_by_day", {"k": ("int4", INT4)}, {"p": ("timestamptz", TIMESTAMPTZ), "q": ("numeric(38,2)", _digits(38, 2))},
         settings="partition_by: [day(p)], sort_by: [q]"),
    Kind("laid_by_bucket", {"k": ("numeric(38,0)", _digits(38))}, {"p": ("date", DATE)},
         settings='partition_by: ["bucket(3, k)"]'),
    Kind("laid_by_part", {"k": ("int8", INT8), "k2": ("text", TEXT)}, {"p": ("numeric(38,4)", _digits(38, 4))},
         settings='partition_by: ["truncate(2, k2)"], sort_by: [p desc]'),
    Kind("shifting", {"k": ("int4", _FEW)}, {"n": ("numeric(8,2)", _digits(8, 2))}, shifts=True),
    Kind("shifting_bag", {"k": ("int4", _FEW)}, {"n": ("numeric(8,2)", _digits(8, 2))}, shifts=True,
         after=_FULL, key_sql=""),
)  # fmt: skip
USUAL: Mapping[str, Kind] = {kind.name: kind for kind in _KINDS}
# Rows of one byte to 50 MB, each half of which is random; for the long form.
HUGE = Kind(
    "huge",
    {"k": ("int4", _among("1", "2", "3"))},
    {
        "p": (
            "text",
            lambda chance: chance.randbytes(chance.choice((0, 1, 1 << 10, 1 << 20, 8 << 20, 25 << 20))).hex(),
        )
    },
)
ALL: Mapping[str, Kind] = {**USUAL, HUGE.name: HUGE}
