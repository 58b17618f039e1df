"""What a binary stream needs to know of its source's own types, asked when it begins and again when it must.

A type that is made while the stream runs is met in it before anyone has looked it up, so the catalog asks the
source again, over a connection of its own, when a value of an unknown type is to be read.  That is no
answer from the future: an OID keeps its kind (type_catalog.py).  A type that has been dropped since cannot be
looked up any more; its values are refused, and read as text the next time.

Invariant: each unknown type costs one question.
"""

from __future__ import annotations

from slotlake.decoder.catalog.publications import source_tables
from slotlake.decoder.errors import SourceError
from slotlake.decoder.server.source import SourceSettings, redact, source_session
from slotlake.decoder.types.binary.values import withheld_from_binary
from slotlake.decoder.types.catalog import TypeCatalog, load_types


def source_types(source: SourceSettings) -> TypeCatalog:
    """The types of a source whose published tables are about to be read in binary.

    Raises:
        SourceError: a published column has a type whose text cannot be had from its binary form.
    """
    catalog = TypeCatalog()
    with source_session(source.dsn, "looking up its types") as connection:
        load_types(connection, catalog)
        for table in source_tables(connection, source.publications):
            for column in table.columns:
                if reason := withheld_from_binary(column.type_oid, catalog):
                    raise SourceError(
                        f"column {column.name!r} of {table.schema}.{table.table} cannot be read in binary: "
                        f"{reason}",
                        where=redact(source.dsn),
                        way_out="read this source with binary off (`source.binary: false`)",
                    )
    keep_asking(catalog, source.dsn)
    return catalog


def keep_asking(catalog: TypeCatalog, dsn: str) -> None:
    """From now on the catalog asks the source for types that it does not know."""

    def ask() -> None:
        with source_session(dsn, "looking up its types") as connection:
            load_types(connection, catalog)

    catalog.ask = ask
