"""Traits of types: what in the catalog decides how values are printed, and can change without a row event.

If an enum's label is renamed, or a composite gets an attribute, old rows are printed in another way.  If a
table is renamed, each ``regclass`` value that names it is.  The inner types of arrays, domains, ranges and
composites count too.  Invariant: as long as all earlier traits of a column still exist, its values print the
same text as before; new traits (a label, an object) do not change any existing text.  A label that was
renamed and renamed back has a new version of its row of pg_enum (its xmin), because rows sent in between show
the other name.  A server that prints a type otherwise than older versions gives it a trait (`LONG_LSN`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

import psycopg

from slotlake.decoder.types import oids
from slotlake.decoder.types.names import BUILTIN_NAMES, FIRST_GENBKI_OID, FIRST_NORMAL_OID

NAME, OBJECT = "n", "g"
# NAME: a trait for a struct's field names.  OBJECT: for objects shown by name (reg…): kind, OID, and the
# first letters of the digest of their text.
DIGEST_LETTERS = 8
OBJECTS_MAX = 5000

_OF_RELATIONS = "x.relkind IN ('r', 'p', 'v', 'm', 'S', 'f') AND x.relpersistence <> 't'"
# Type → (catalog, which of its rows). Temporary tables, indexes and toast tables are left out: they come and
# go without a command that names them.
OBJECT_KINDS = {
    "regclass": ("pg_class", _OF_RELATIONS),
    "regproc": ("pg_proc", "true"),
    "regprocedure": ("pg_proc", "true"),
    "regoper": ("pg_operator", "true"),
    "regoperator": ("pg_operator", "true"),
    "regtype": (
        "pg_type",
        (
            "NOT EXISTS (SELECT FROM pg_class r WHERE r.oid IN (x.typrelid, "
            "(SELECT e.typrelid FROM pg_type e WHERE e.oid = x.typelem)) AND r.relpersistence = 't')"
        ),
    ),
    "regconfig": ("pg_ts_config", "true"),
    "regdictionary": ("pg_ts_dict", "true"),
    "regnamespace": ("pg_namespace", "x.nspname !~ '^pg_(toast_)?temp'"),
    "regrole": ("pg_roles", "true"),
    "regcollation": ("pg_collation", "true"),
    "regdatabase": ("pg_database", "true"),
}
_FIRST_WITH_LONG_LSN = 190000  # it prints the lower half of a pg_lsn with eight digits
REG_OIDS = {oid for oid, name in BUILTIN_NAMES.items() if name.removeprefix("_") in OBJECT_KINDS}
# The text of these depends on the server's version; those of them that print otherwise have a trait.
_OF_VERSION = {oids.PG_LSN, oids.PG_LSN_ARRAY}
LONG_LSN = "lsn8"

_TRAITS = f"""
WITH RECURSIVE used (root, oid) AS (
    SELECT t.oid, t.oid FROM pg_catalog.pg_type t WHERE t.oid = ANY (%(types)s)
    UNION
    SELECT u.root, inner_type.oid
    FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.oid
    CROSS JOIN LATERAL (
        SELECT t.typelem WHERE t.typelem <> 0
        UNION ALL SELECT t.typbasetype WHERE t.typbasetype <> 0
        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r
                  WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
        UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = t.typrelid AND t.typrelid <> 0 AND a.attnum > 0 AND NOT a.attisdropped
    ) AS inner_type (oid)
)
SELECT u.root::bigint, 'e' || e.oid || ':' || e.xmin
FROM used u JOIN pg_catalog.pg_enum e ON e.enumtypid = u.oid
UNION ALL
SELECT u.root, k.kind || u.oid || ':' || pg_catalog.md5(pg_catalog.string_agg(
           CASE k.kind WHEN 'c' THEN concat_ws(':', a.attnum, a.attisdropped, a.atttypid, a.atttypmod)
                WHEN 'n' THEN concat_ws(':', a.attnum, a.attname) END, ',' ORDER BY a.attnum))
FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.oid AND t.typtype = 'c'
JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0
CROSS JOIN (VALUES ('c'), ('n')) AS k (kind)
GROUP BY 1, u.oid, k.kind
UNION ALL
SELECT u.root, t.typname FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.oid
WHERE t.typname LIKE 'reg%%' AND t.typtype = 'b' AND t.typelem = 0 AND t.oid < {FIRST_GENBKI_OID}
UNION ALL
SELECT u.root, '{LONG_LSN}' FROM used u
WHERE u.oid = {oids.PG_LSN} AND current_setting('server_version_num')::int >= {_FIRST_WITH_LONG_LSN}
"""
_OBJECTS = """
SELECT x.oid::bigint, pg_catalog.left(pg_catalog.md5(x.oid::pg_catalog.{kind}::pg_catalog.text), {letters})
FROM pg_catalog.{catalog} x WHERE x.oid >= {first} AND {chosen}
"""


def printed_by(connection: psycopg.Connection[Any], types: Collection[int]) -> dict[int, frozenset[str]]:
    """The traits of types, by OID, for types whose text may change: one query, and one per kind of object."""
    oids = list(types_of_changing_text(types))
    if not oids:
        return {}
    traits_by_root: dict[int, set[str]] = {}
    roots_by_kind: dict[str, set[int]] = {}
    for root, trait in connection.execute(_TRAITS.encode(), {"types": oids}).fetchall():
        if trait in OBJECT_KINDS:
            roots_by_kind.setdefault(trait, set()).add(int(root))
        else:
            traits_by_root.setdefault(int(root), set()).add(str(trait))
    for kind, roots in roots_by_kind.items():
        objects = _objects(connection, kind)
        for root in roots:
            traits_by_root.setdefault(root, set()).update(objects)
    return {root: frozenset(traits) for root, traits in traits_by_root.items()}


def types_of_changing_text(types: Collection[int]) -> frozenset[int]:
    """Return those of these types, by OID, of which the text of a value may change without a change of it."""
    return frozenset(oid for oid in types if oid >= FIRST_GENBKI_OID or oid in REG_OIDS | _OF_VERSION)


def _objects(connection: psycopg.Connection[Any], kind: str) -> set[str]:
    """The source's own objects of a kind, and how each is printed; above a limit, one digest of all."""
    catalog, chosen = OBJECT_KINDS[kind]
    query = _OBJECTS.format(
        kind=kind, catalog=catalog, chosen=chosen, first=FIRST_NORMAL_OID, letters=DIGEST_LETTERS
    )
    objects = [f"{OBJECT}{kind}:{oid}:{text}" for oid, text in connection.execute(query.encode()).fetchall()]
    if len(objects) <= OBJECTS_MAX:
        return set(objects)
    whole = hashlib.sha256("".join(sorted(objects)).encode()).hexdigest()
    return {f"{OBJECT}{kind}:all:{whole}"}
