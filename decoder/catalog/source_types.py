"""The source's own types, which a binary stream needs: read when it begins, and again for an unknown type.

A type that is created while the stream runs appears in the stream before slotlake has read its definition.
So, when a value has an unknown type, the catalog asks the source again over a separate connection.  The
answer is not newer than the value, because an OID never changes its kind (types/catalog.py).  A type that has
been dropped since cannot be read any more; its values are refused, and read as text the next time.

Invariant: each unknown type costs one query.
"""

from __future__ import annotations

from slotlake.decoder.catalog.publications import source_tables
from slotlake.decoder.errors import SourceError
from slotlake.decoder.server.source import SourceSettings, redact, source_session
from slotlake.decoder.types.binary.values import withheld_from_binary
from slotlake.decoder.types.catalog import TypeCatalog, load_types


def source_types(source: SourceSettings) -> TypeCatalog:
    """The types of a source whose published tables will be read in binary.

    Raises:
        SourceError: a published column has a type whose text cannot be made from its binary value.
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
                        way_out="turn binary off (`source.binary: false`)",
                    )
    keep_asking(catalog, source.dsn)
    return catalog


def keep_asking(catalog: TypeCatalog, dsn: str) -> None:
    """Let the catalog ask the source for types that it does not know."""

    def ask() -> None:
        with source_session(dsn, "looking up its types") as connection:
            load_types(connection, catalog)

    catalog.ask = ask
