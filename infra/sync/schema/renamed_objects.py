"""Tables of which a batch has rows that name an object by a name that nothing has at the source any more.

A value of ``regclass`` and its like is an OID that the server prints as a name.  If the object was renamed
and renamed back, or made and dropped, between two looks at the catalog, only such rows show it
(`decoder.catalog.reg_texts`).  The source prints them otherwise by now, so their table is copied again.

Not noticed: two objects that swap their names, and swap them back: each text is right, for the other object.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.reg_texts import texts_without_object
from slotlake.decoder.catalog.type_texts import OBJECT, REG_OIDS
from slotlake.infra.source.fingerprints import CatalogFingerprint, catalog_at

if TYPE_CHECKING:
    from slotlake.decoder.changelog.batches import Batch
    from slotlake.spark.tables.schema import TableSchema

Name = tuple[str, str]
NAMES_BETWEEN = "rows were written while an object that they name had another name"


def tables_naming_renamed_objects(
    dsn: str, mirrors: Mapping[Name, TableSchema], batch: Batch, snapshot: str | None
) -> set[Name]:
    """Return the tables that have such rows in the batch, by schema and name.

    Args:
        mirrors: the tables that the lake follows, by schema and name.
        snapshot: name of the source's snapshot at which the batch ends; None for the catalog of now.
    """
    texts = _texts(mirrors, batch)
    if not texts:
        return set()
    together: dict[int, set[str]] = defaultdict(set)
    for (_, oid), values in texts.items():
        together[oid] |= values
    with catalog_at(dsn, snapshot) as connection:
        missing = texts_without_object(connection, together)
    return {name for (name, oid), values in texts.items() if values & missing.get(oid, frozenset())}


def _texts(mirrors: Mapping[Name, TableSchema], batch: Batch) -> dict[tuple[Name, int], set[str]]:
    """The texts of values that name objects, by table and type OID."""
    texts: dict[tuple[Name, int], set[str]] = defaultdict(set)
    for relation in batch.relations:
        name = relation.schema, relation.table
        if not relation.rows or name not in mirrors:
            continue
        table = mirrors[name]
        naming, lake_columns = REG_OIDS | _own_types(table), {column.name for column in table.live}
        for index, column in enumerate(relation.columns):
            if column.type_oid in naming and (column.name in lake_columns or not table.selection):
                texts[name, column.type_oid] |= batch.distinct_texts(relation, index)
    return {place: values for place, values in texts.items() if values}


def _own_types(table: TableSchema) -> set[int]:
    """OIDs of domains over such types, arrays of them, …: types whose text depends on objects."""
    fingerprint = CatalogFingerprint.from_json(table.fingerprint)
    texts = {} if fingerprint is None else fingerprint.texts
    naming = {number for number, traits in texts.items() if any(each.startswith(OBJECT) for each in traits)}
    return {column.type_oid for column in table.live if column.number in naming}
