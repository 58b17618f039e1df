"""Finds names in values of ``regclass`` and similar types that no object of the source has today.

A row has the OID of an object; the stream has the object's name at the time when the row was written.  The
catalog does not show that an object was renamed and renamed back, or created and dropped since.  Only rows
that were written in between show it: they have a name that no object has.

A name is compared with the names that the server prints; it is not parsed.  For an overloaded function the
server prints a text that ``regproc`` cannot parse.  Values inside composites and ranges are not examined.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import psycopg

from slotlake.decoder.catalog.type_texts import OBJECT_KINDS
from slotlake.decoder.types.names import FIRST_GENBKI_OID

# Domains and arrays are followed to their element type; a domain over arrays inside an array is not.
_KINDS = f"""
WITH RECURSIVE inner_type (root, oid, arrays) AS (
    SELECT t.oid, t.oid, 0 FROM pg_catalog.pg_type t WHERE t.oid = ANY (%(types)s)
    UNION ALL
    SELECT i.root, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.typelem END,
           i.arrays + (t.typtype <> 'd')::int
    FROM inner_type i JOIN pg_catalog.pg_type t ON t.oid = i.oid
    WHERE t.typtype = 'd' OR (t.typcategory = 'A' AND t.typelem <> 0)
)
SELECT i.root::bigint, t.typname, i.arrays > 0
FROM inner_type i JOIN pg_catalog.pg_type t ON t.oid = i.oid
WHERE t.typname = ANY (%(kinds)s) AND t.oid < {FIRST_GENBKI_OID} AND i.arrays < 2
"""
# An OID without an object is printed as a number, and 0 as a special text.
_UNPRINTED = """
WITH printed (name) AS MATERIALIZED (
    SELECT DISTINCT x.oid::pg_catalog.{kind}::pg_catalog.text FROM pg_catalog.{catalog} x
)
SELECT DISTINCT said.text
FROM (SELECT value, {names} FROM pg_catalog.unnest(%(texts)s::pg_catalog.text[]) AS value) said (text, name)
LEFT JOIN printed USING (name)
WHERE printed.name IS NULL AND said.name <> 0::pg_catalog.oid::pg_catalog.{kind}::pg_catalog.text
  AND CASE WHEN said.name ~ '^[0-9]+$'
           THEN said.name::pg_catalog.oid::pg_catalog.{kind}::pg_catalog.text <> said.name ELSE true END
"""
_NAMES = {False: "value", True: "pg_catalog.unnest(value::pg_catalog.text[])"}  # True: an array


def texts_without_object(
    connection: psycopg.Connection[Any], texts: Mapping[int, Collection[str]]
) -> dict[int, frozenset[str]]:
    """Those texts of values, by their type's OID, that have a name that no object of the kind has now.

    Types of other kinds are ignored.
    """
    unknown_texts: dict[int, frozenset[str]] = {}
    parameters = {"types": list(texts), "kinds": list(OBJECT_KINDS)}
    for oid, kind, array in connection.execute(_KINDS.encode(), parameters).fetchall():
        query = _UNPRINTED.format(kind=kind, catalog=OBJECT_KINDS[kind][0], names=_NAMES[array])
        rows = connection.execute(query.encode(), {"texts": list(texts[oid])}).fetchall()
        unknown_texts[int(oid)] = frozenset(text for (text,) in rows)
    return {oid: missing for oid, missing in unknown_texts.items() if missing}
