"""Names of PostgreSQL's own types by OID, and the first OIDs of other types.

The replication stream names only the types from FIRST_GENBKI_OID on; `BUILTIN_NAMES` has the others.
"""

from __future__ import annotations

from slotlake.decoder.types import oids

FIRST_GENBKI_OID = 10_000  # transam.h FirstGenbkiObjectId: pgoutput sends Type messages from here on
FIRST_NORMAL_OID = 16_384  # transam.h FirstNormalObjectId: below are the types that initdb made
_ARRAY = "_ARRAY"


def _type_name(constant: str) -> str:
    """The name in pg_type: ``INT4_ARRAY`` → ``_int4``."""
    return f"_{constant.removesuffix(_ARRAY)}".lower() if constant.endswith(_ARRAY) else constant.lower()


BUILTIN_NAMES: dict[int, str] = {
    oid: _type_name(constant) for constant, oid in vars(oids).items() if constant.isupper()
}


# A type as PostgreSQL writes it: ``numeric(10,2)``, ``varchar(20)``, ``int4[]``.
#
# The stream and the change log have a type's name in pg_type and its modifier.  This module prints the two as
# format_type does, except for the SQL names (``integer``), which pg_type does not have.

_HEADER = 4  # VARHDRSZ: the modifier of these types is larger than the declared length by it
_LENGTHS = {"varchar", "bpchar"}
_PLAIN = {"bit", "varbit", "time", "timetz", "timestamp", "timestamptz"}


def written(name: str, oid: int, typmod: int) -> str:
    """The type's name with its modifier.

    Args:
        name: in pg_type, as in a relation version or in the lake; "" if it is not known.
    """
    name = name or BUILTIN_NAMES.get(oid, f"OID {oid}")
    schema, dot, base = name.rpartition(".")
    ending = "[]" if base.startswith("_") else ""
    base = base.removeprefix("_") if ending else base
    return f"{schema}{dot}{base}{_modifier(base, typmod)}{ending}"


def _modifier(base: str, typmod: int) -> str:
    if typmod < 0:
        return ""
    if base == "numeric":
        precision, scale = ((typmod - _HEADER) >> 16) & 0xFFFF, (((typmod - _HEADER) & 0x7FF) ^ 1024) - 1024
        return f"({precision},{scale})"
    if base in _LENGTHS:
        return f"({typmod - _HEADER})"
    return f"({typmod})" if base in _PLAIN else ""
