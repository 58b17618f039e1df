"""Reads type names as SQL prints them (format_type.c) into OID, modifier and name in pg_type.

test_decoding, wal2json and decoderbufs name types by format_type: "character varying(20)",
"timestamp(3) with time zone", "integer[]".  pgoutput and this project use pg_type's names and OIDs.
A name that is not built in has OID 0 here; the catalog may know it (catalog.py).
"""

from __future__ import annotations

import re
from functools import cache

from slotlake.decoder.types.names import BUILTIN_NAMES

_OIDS = {name: oid for oid, name in BUILTIN_NAMES.items()}
_SQL_NAMES = {
    "bigint": "int8",
    "bit": "bit",
    "bit varying": "varbit",
    "boolean": "bool",
    "character": "bpchar",
    "character varying": "varchar",
    "double precision": "float8",
    "integer": "int4",
    "real": "float4",
    "smallint": "int2",
    "time with time zone": "timetz",
    "time without time zone": "time",
    "timestamp with time zone": "timestamptz",
    "timestamp without time zone": "timestamp",
}
_MODIFIER = re.compile(r"\((-?\d{1,9}(?:,-?\d{1,9})?)\)")
_ANY_MODIFIER = re.compile(r"\([^()]*\)")  # a user type may have any modifier
_INTERVAL_FIELDS = re.compile(r"^interval (year|month|day|hour|minute|second)[a-z ]*$")


@cache  # each column of each row has such a text
def parse_type(text: str) -> tuple[int, int, str]:
    """(type OID, modifier, name in pg_type) of a printed type; OID 0 and the text itself if not built in."""
    element, array = (text[:-2], True) if text.endswith("[]") else (text, False)
    plain = _MODIFIER.sub("", element).strip()
    fields = _INTERVAL_FIELDS.match(plain)
    plain = "interval" if fields else plain
    if plain.startswith('"') and plain.endswith('"') and plain.count('"') == 2:
        plain = plain.strip('"')
    name = _SQL_NAMES.get(plain, plain)
    full = f"_{name}" if array else name
    if full not in _OIDS:
        return 0, -1, text
    return _OIDS[full], -1 if fields else _modifier(name, _MODIFIER.search(element)), full


def same_type(one: str, other: str) -> bool:
    """True if two printed names may mean the same type; modifier, quotes and schema do not count."""
    return _bare(one) == _bare(other)


def _bare(text: str) -> str:
    return _ANY_MODIFIER.sub("", text).replace('"', "").rpartition(".")[2].strip()


def _modifier(name: str, match: re.Match[str] | None) -> int:
    """As the type's typmodin function packs it (varchar.c, numeric.c, timestamp.c, varbit.c)."""
    if match is None:
        return -1
    numbers = [int(part) for part in match[1].split(",")]
    if name in ("varchar", "bpchar"):
        return numbers[0] + 4
    if name == "numeric":
        precision, scale = (*numbers, 0)[:2]
        return ((precision << 16) | (scale & 0x7FF)) + 4
    if name == "interval":
        return (0x7FFF << 16) | numbers[0]
    return numbers[0]
