"""Names in values of ``regclass`` and its like: which of them does the source's catalog not print today?

A row has an object's OID, the stream its name as it was when the row was written.  An object that was renamed
and is back under its name leaves no trace in the catalog, nor does one that was made and dropped since.  Only
rows written in between tell of it: by a name that no object has.

A name is looked for among those that are printed, not read back: an overloaded function is printed as what
``regproc`` cannot read.  Values within composites and ranges are not looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import psycopg

from slotlake.decoder.catalog.type_texts import OBJECT_KINDS
from slotlake.decoder.types.names import FIRST_GENBKI_OID

# Domains and arrays, followed to what they are of; a domain over arrays within an array is left alone.
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
# What has no name is printed as its number, and 0 as a sign of its own.
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
_NAMES = {False: "value", True: "pg_catalog.unnest(value::pg_catalog.text[])"}  # of an array?


def texts_without_object(
    connection: psycopg.Connection[Any], texts: Mapping[int, Collection[str]]
) -> dict[int, frozenset[str]]:
    """Of texts of values, by their type's OID, those with a name that no object of the kind has now.

    Types of other kinds are passed over.
    """
    unknown_texts: dict[int, frozenset[str]] = {}
    parameters = {"types": list(texts), "kinds": list(OBJECT_KINDS)}
    for oid, kind, array in connection.execute(_KINDS.encode(), parameters).fetchall():
        query = _UNPRINTED.format(kind=kind, catalog=OBJECT_KINDS[kind][0], names=_NAMES[array])
        rows = connection.execute(query.encode(), {"texts": list(texts[oid])}).fetchall()
        unknown_texts[int(oid)] = frozenset(text for (text,) in rows)
    return {oid: missing for oid, missing in unknown_texts.items() if missing}
