"""Pinned views: namespaces of a SQL catalog whose tables are the lake's tables at a consistency point.

``<namespace>__at`` follows the lake. ``<namespace>__at_<lsn>`` stays at its point: nobody ever moves what a
name there means, so a query over it sees one point whatever is published meanwhile.  A view is a row of the
catalog that names a metadata file which the table has anyway; such a file never changes, and its main
snapshot and its columns are those of the point.  So views cost no file, and readers of tables read them.

A property of each of these namespaces marks it (:data:`OWNER`).  Everything else here passes over marked
namespaces: their tables are no tables of the lake.

Invariant: rows change only in the transaction that moves the tables themselves.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables
from sqlalchemy import ColumnElement, Select, delete, insert, literal, or_, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.orm import aliased

from slotlake.decoder.lsn import format_lsn
from slotlake.spark.catalog.base import VIEWS_SUFFIX, ViewNamespace
from slotlake.spark.catalog.tags import tags
from slotlake.spark.catalog.view_spaces import (
    MADE,
    OWNER,
    POINT,
    point_namespace,
    space_of,
    staying,
    table_among_views,
    tables_where_views_are_to_be,
)
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import COMMITS, LakeName, belongs
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata

_TABLES = IcebergTables.__table__.c
_SPACES = IcebergNamespaceProperties.__table__.c


def marked(catalog: str) -> Select[tuple[str]]:
    """Return the query for the names of all namespaces of views in a catalog."""
    return select(_SPACES.namespace).where(_SPACES.catalog_name == catalog, _SPACES.property_key == OWNER)


def view_namespaces(connection: Connection, lake: LakeSettings) -> list[ViewNamespace]:
    """Return the namespaces of views of a lake, by name."""
    keys = (OWNER, POINT, MADE)
    query = select(_SPACES.namespace, _SPACES.property_key, _SPACES.property_value).where(
        _SPACES.catalog_name == lake.catalog, _SPACES.property_key.in_(keys)
    )
    properties: dict[str, dict[str, str]] = {}
    for name, key, value in connection.execute(query):
        properties.setdefault(name, {})[key] = value
    read = (space_of(name, each, lake.namespace) for name, each in sorted(properties.items()))
    return [space for space in read if space is not None]


def follow(
    connection: Connection, lake: LakeSettings, targets: Collection[LakeName], commits: Metadata | None
) -> None:
    """Bring the views to where the tables are now, within the transaction that moved the tables.

    Args:
        connection: to the catalog, in that transaction.
        targets: what the moved tables are called now.
        commits: the metadata of the table `commits`, if it was moved.

    Raises:
        LakeError: a namespace of views has a table's name, or the other way round; nothing is changed then.
    """
    spaces = {space.name: space for space in view_namespaces(connection, lake)}
    if not lake.views:
        if commits is not None:
            forget(connection, lake, spaces)
        return
    _refuse_tables_among_views(targets, spaces)
    position = None if commits is None else catalog_metadata.newest_position(commits)
    if position is None and not spaces:
        return  # nothing is published yet
    followed = {space.base for space in spaces.values() if space.follows}
    for base in followed:
        tables = [name.table for name in targets if name.namespace == base]
        _fill(connection, lake, base, base + VIEWS_SUFFIX, tables)
        _note(connection, lake, base + VIEWS_SUFFIX, position)
    if commits is None or position is None:
        return
    if not followed or any(name.namespace not in followed for name in targets):
        for base in sorted({*_bases(connection, lake)} - followed):
            _make(connection, lake, ViewNamespace(base + VIEWS_SUFFIX, base, position, time.time()))
            followed.add(base)
    _stay(connection, lake, followed, spaces, tags(commits).keys(), position)


def require_free(connection: Connection, lake: LakeSettings) -> None:
    """Require that no table is where the views are to be.

    Raises:
        LakeError: a table is.
    """
    spaces = {space.name: space for space in view_namespaces(connection, lake)}
    for base in {*_bases(connection, lake), lake.namespace}:
        if base + VIEWS_SUFFIX not in spaces:
            _refuse_taken(connection, lake, base + VIEWS_SUFFIX)


def forget(connection: Connection, lake: LakeSettings, names: Collection[str]) -> None:
    """Remove namespaces of views with all that is in them."""
    if not names:
        return
    for table, column in ((IcebergTables, _TABLES), (IcebergNamespaceProperties, _SPACES)):
        space = column.table_namespace if table is IcebergTables else column.namespace
        statement = delete(table).where(column.catalog_name == lake.catalog, space.in_(list(names)))
        connection.execute(statement)


def forget_tables(connection: Connection, lake: LakeSettings, names: Sequence[LakeName]) -> None:
    """Remove the views of tables that leave the catalog, and namespaces that are empty then."""
    spaces = view_namespaces(connection, lake)
    dropped = set(names)
    for space in spaces:
        of_base = [name.table for name in dropped if name.namespace == space.base]
        if of_base:
            within = _within(lake, space.name)
            connection.execute(delete(IcebergTables).where(*within, _TABLES.table_name.in_(of_base)))
            if connection.execute(select(_TABLES.table_name).where(*within).limit(1)).first() is None:
                forget(connection, lake, [space.name])


def locations(connection: Connection, lake: LakeSettings, name: LakeName) -> list[str]:
    """Return the metadata files by which views show a table."""
    names = [space.name for space in view_namespaces(connection, lake) if space.base == name.namespace]
    query = select(_TABLES.metadata_location).where(
        _TABLES.catalog_name == lake.catalog,
        _TABLES.table_namespace.in_(names),
        _TABLES.table_name == name.table,
        _TABLES.metadata_location.is_not(None),
    )
    return [str(location) for location in connection.execute(query).scalars()]


def _stay(
    connection: Connection,
    lake: LakeSettings,
    bases: Collection[str],
    spaces: Mapping[str, ViewNamespace],
    tagged: Collection[int],
    position: int,
) -> None:
    """Make the namespaces that stay at this point, and remove those of points that are kept no more."""
    now = time.time()
    stays, remaining = staying(spaces.values(), tagged, position, now, lake.keep.count)
    if stays:
        again = [point_namespace(base, position) for base in bases]
        forget(connection, lake, [name for name in again if name in spaces])
        for base in bases:
            _make(connection, lake, ViewNamespace(point_namespace(base, position), base, position, now))
            _forget_dropped(connection, lake, base)
    forget(
        connection, lake, [s.name for s in spaces.values() if not s.follows and s.position not in remaining]
    )


def _make(connection: Connection, lake: LakeSettings, space: ViewNamespace) -> None:
    """Make a namespace of views, and a view of each table of its base."""
    _refuse_taken(connection, lake, space.name)
    forget(connection, lake, [space.name])  # an empty namespace may be there
    point = {} if space.position is None else {POINT: format_lsn(space.position)}
    properties = {"exists": "true", OWNER: lake.namespace, MADE: repr(space.made), **point}
    place = {"catalog_name": lake.catalog, "namespace": space.name}
    rows = [{**place, "property_key": key, "property_value": value} for key, value in properties.items()]
    connection.execute(insert(IcebergNamespaceProperties), rows)
    _insert(connection, lake, space.base, space.name)


def _fill(connection: Connection, lake: LakeSettings, base: str, views: str, tables: Collection[str]) -> None:
    """Make the views of these tables what the tables are."""
    if tables:
        within = _within(lake, views)
        connection.execute(delete(IcebergTables).where(*within, _TABLES.table_name.in_(list(tables))))
        _insert(connection, lake, base, views, _TABLES.table_name.in_(list(tables)))


def _forget_dropped(connection: Connection, lake: LakeSettings, base: str) -> None:
    """Remove the views that follow tables which somebody has dropped."""
    table = aliased(IcebergTables)
    present = select(table.table_name).where(
        table.catalog_name == lake.catalog, table.table_namespace == base
    )
    views = _within(lake, base + VIEWS_SUFFIX)
    connection.execute(
        delete(IcebergTables)
        .where(*views, _TABLES.table_name.not_in(present))
        .execution_options(synchronize_session=False)
    )


def _insert(
    connection: Connection, lake: LakeSettings, base: str, views: str, *which: ColumnElement[bool]
) -> None:
    columns = ["catalog_name", "table_namespace", "table_name", "metadata_location"]
    rows = select(_TABLES.catalog_name, literal(views), _TABLES.table_name, _TABLES.metadata_location).where(
        *_within(lake, base), _TABLES.metadata_location.is_not(None), *which
    )
    connection.execute(insert(IcebergTables).from_select(columns, rows, include_defaults=False))


def _note(connection: Connection, lake: LakeSettings, views: str, position: int | None) -> None:
    """Note the point to which a namespace of views came."""
    if position is not None:
        connection.execute(
            update(IcebergNamespaceProperties)
            .where(
                _SPACES.catalog_name == lake.catalog,
                _SPACES.namespace == views,
                _SPACES.property_key == POINT,
            )
            .values(property_value=format_lsn(position))
        )


def _bases(connection: Connection, lake: LakeSettings) -> list[str]:
    """The namespaces of the lake's published tables; none before the initial copy."""
    query = (
        select(_TABLES.table_namespace)
        .where(
            _TABLES.catalog_name == lake.catalog,
            or_(
                _TABLES.table_namespace == lake.namespace,
                _TABLES.table_namespace.startswith(f"{lake.namespace}__", autoescape=True),
            ),
            _TABLES.table_namespace.not_in(marked(lake.catalog)),
        )
        .distinct()
    )
    names = [name for name in connection.execute(query).scalars() if belongs(name, lake.namespace)]
    others = select(_TABLES.table_namespace).where(
        _TABLES.catalog_name == lake.catalog,
        _TABLES.table_namespace.in_(names),
        _TABLES.table_name == COMMITS,
    )
    lakes = set(connection.execute(others).scalars())  # a pipeline may have a namespace that begins like ours
    if lake.namespace not in lakes:
        return []
    foreign = lakes - {lake.namespace}
    return sorted(name for name in names if not any(belongs(name, other) for other in foreign))


def _within(lake: LakeSettings, namespace: str) -> tuple[ColumnElement[bool], ...]:
    return _TABLES.catalog_name == lake.catalog, _TABLES.table_namespace == namespace


def _refuse_taken(connection: Connection, lake: LakeSettings, name: str) -> None:
    if connection.execute(select(_TABLES.table_name).where(*_within(lake, name)).limit(1)).first() is None:
        return
    raise tables_where_views_are_to_be(name, lake.place)


def _refuse_tables_among_views(targets: Collection[LakeName], spaces: Collection[str]) -> None:
    for name in targets:
        if name.namespace in spaces:
            raise table_among_views(name)
