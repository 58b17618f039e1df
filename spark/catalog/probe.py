"""Whether a lake could be written: asked without making a catalog, a table, a namespace or a folder.

`open.check_lake` makes what is missing and so proves the same; this is for who only looks.  Invariant: what a
probe writes it takes back, a file or a REST server's table by removing it, a statement by a rollback.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import create_engine, inspect
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.pool import NullPool

from slotlake.decoder.errors import LakeError
from slotlake.spark import exchange
from slotlake.spark.catalog.abilities import abilities_of, require_abilities
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.catalog.sql.catalog import explained
from slotlake.spark.lake import LakeSettings

_TABLES = "iceberg_tables"
_NO_ROW = f"UPDATE {_TABLES} SET metadata_location = metadata_location WHERE 1 = 0"
_MAY_CREATE = "SELECT has_schema_privilege(current_schema(), 'CREATE')"


def probe_catalog(lake: LakeSettings) -> bool:
    """Make sure that the catalog can be reached and written.

    Returns:
        Whether the catalog has its own tables already; without them `init` makes them.

    Raises:
        LakeError: it cannot be reached or written, or cannot publish all tables at once.
    """
    if lake.is_rest:
        require_abilities(lake)
        return True
    if lake.is_metastore:
        with open_catalog(lake) as catalog:
            catalog.names()
        return True
    url = make_url(lake.sqlalchemy_uri)
    file = Path(url.database or "") if url.get_backend_name() == "sqlite" else None
    if file is not None:
        exchange.probe_folder(file.parent, what="the catalog's folder")
        if not file.exists():
            return False
    with explained(lake):
        engine = create_engine(url, poolclass=NullPool)
        return _has_tables(engine, lake)


def rest_words(lake: LakeSettings) -> str:
    """Return in a line what the server of a REST catalog can do.

    Raises:
        LakeError: the server cannot be reached.
    """
    return abilities_of(lake).words


def _has_tables(engine: Engine, lake: LakeSettings) -> bool:
    with engine.connect() as connection:
        has_tables = inspect(connection).has_table(_TABLES)
        connection.rollback()
        if has_tables:
            connection.exec_driver_sql(_NO_ROW)
        elif engine.dialect.name == "postgresql":
            _require_create(connection, lake)
        connection.rollback()
    return bool(has_tables)


def _require_create(connection: Connection, lake: LakeSettings) -> None:
    if connection.exec_driver_sql(_MAY_CREATE).scalar() is not True:
        raise LakeError(
            "the catalog has no tables yet, and this user may not create any there",
            where=lake.place,
            way_out="GRANT CREATE ON SCHEMA public TO the user of lake.uri, or name another database",
        )


__all__ = ["probe_catalog", "rest_words"]
