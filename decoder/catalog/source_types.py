"""The source's own types, which a binary stream needs: read when it begins, and again for an unknown type.

A type that is created while the stream runs appears in the stream before slotlake has read its definition.
So, when a value has an unknown type, the catalog asks the source again over a separate connection.  The
answer is not newer than the value, because an OID never changes its kind (types/catalog.py).  A type that has
been dropped since cannot be read any more; its values are refused, and read as text the next time.

Invariant: each unknown type costs one query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg

from slotlake.decoder.catalog.publications import source_tables
from slotlake.decoder.errors import SourceError
from slotlake.decoder.server.source import SourceSettings, redact, source_session
from slotlake.decoder.types.binary.values import withheld_from_binary
from slotlake.decoder.types.catalog import TypeCatalog, load_types

TEXT_OR_UNPUBLISHED: Final = (
    "turn binary off (`source.binary: false`), or leave the columns out of the publication (from PostgreSQL "
    "15 on): ALTER PUBLICATION … DROP TABLE …, then ADD TABLE … (the other columns), in one transaction"
)


def source_types(source: SourceSettings) -> TypeCatalog:
    """The types of a source whose published tables will be read in binary.

    Raises:
        SourceError: published columns have a type whose text cannot be made from its binary value.
    """
    catalog = TypeCatalog()
    with source_session(source.dsn, "looking up its types") as connection:
        load_types(connection, catalog)
        withheld = withheld_columns(connection, source.publications, catalog)
    if withheld:
        raise SourceError("; ".join(withheld), where=redact(source.dsn), way_out=TEXT_OR_UNPUBLISHED)
    keep_asking(catalog, source.dsn)
    return catalog


def withheld_columns(
    connection: psycopg.Connection[Any], publications: Sequence[str], catalog: TypeCatalog
) -> list[str]:
    """Say of each published column that cannot be read in binary why that is.

    One such column stops the stream of all tables: where its type has no binary format inside an array or a
    composite, the server itself fails at the first row.
    """
    return [
        f"column {column.name!r} of {table.schema}.{table.table} cannot be read in binary: {reason}"
        for table in source_tables(connection, publications)
        for column in table.columns
        if (reason := withheld_from_binary(column.type_oid, catalog))
    ]


def keep_asking(catalog: TypeCatalog, dsn: str) -> None:
    """Let the catalog ask the source for types that it does not know."""

    def ask() -> None:
        with source_session(dsn, "looking up its types") as connection:
            load_types(connection, catalog)

    catalog.ask = ask
