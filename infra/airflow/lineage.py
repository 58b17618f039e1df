"""Which source table each lake table is made of, for OpenLineage: columns, and the LSN both sides are at.

Airflow's provider ``apache-airflow-providers-openlineage`` is no dependency: without it, or where it is
switched off, nothing is read and nothing is kept.  A step notes what it brought; after the task, the provider
asks the operator in the same process (`slotlake.infra.airflow.step_task`).

Names are those of OpenLineage's own integrations: ``postgres://host:port`` and ``database.schema.table``; a
lake table by its place, as Spark's integration names it, with its name in the catalog as a symlink.  No
address of a catalog and no password is in an event.
"""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from slotlake.decoder.errors import SlotlakeError

if TYPE_CHECKING:
    from slotlake.infra.airflow.brought import Brought
    from slotlake.infra.pipeline import Pipeline
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.tables.schema import TableSchema

TABLES_MAX = 100  # of an event; those with the most changes
_PROVIDER = "airflow.providers.openlineage"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableLineage:
    """A lake table and the source table it is made of.

    Attributes:
        source: database, schema and table at the source, with dots between them.
        location: of the lake table, a URI or a path.
        lake_table: its name in the catalog, with its namespace.
        columns: name at the source and its type, name in the lake and its type.
    """

    source: str
    location: str
    lake_table: str
    columns: tuple[tuple[str, str, str, str], ...]


@dataclass(frozen=True)
class Lineage:
    """What a task has read and written.

    Attributes:
        source: the source's namespace, ``postgres://host:port``.
        warehouse: the lake's, without the name of a user.
        brought: counts and positions, without the tables.
    """

    source: str
    warehouse: str
    brought: dict[str, Any]
    tables: tuple[TableLineage, ...]


_noted: list[Lineage] = []  # of the task that runs in this process: one at most


def is_asked_for() -> bool:
    """Return whether Airflow's OpenLineage provider is installed and switched on."""
    try:
        if importlib.util.find_spec(_PROVIDER) is None:
            return False
    except ModuleNotFoundError:
        return False
    from airflow.providers.openlineage import conf

    return not conf.is_disabled()


def note(pipeline: Pipeline, brought: Brought) -> None:
    """Note what a step brought, if somebody asks for lineage; an error of the catalog is only logged.

    Args:
        pipeline: an open pipeline.
        brought: what the step brought.
    """
    _noted.clear()
    if not brought.tables or not is_asked_for():
        return
    try:
        _noted.append(_lineage(pipeline.lake, pipeline.source.dsn, brought))
    except SlotlakeError as error:
        _log.warning("no lineage: %s", error)


def _lineage(lake: LakeSettings, dsn: str, brought: Brought) -> Lineage:
    from psycopg.conninfo import conninfo_to_dict

    from slotlake.spark.catalog.base import load_all
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.names import lake_table, parse_postgres_name
    from slotlake.spark.tables.schema import schema_of

    source = conninfo_to_dict(dsn)
    largest = sorted(brought.tables, key=lambda table: (-brought.tables[table], table))[:TABLES_MAX]
    names = [lake_table(lake.namespace, *parse_postgres_name(table)) for table in largest]
    with open_catalog(lake) as catalog:
        loaded = load_all(catalog, names)
    schemas = {name: schema_of(table.metadata, name) for name, table in loaded.items()}
    host, port = (str(source.get(key) or usual).split(",")[0] for key, usual in _USUAL.items())
    return Lineage(
        source=f"postgres://{host}:{port}",
        warehouse=str(lake.warehouse),
        brought={key: value for key, value in brought.as_dict().items() if key != "tables"},
        tables=tuple(
            TableLineage(
                source=f"{source.get('dbname', '')}.{schema.schema}.{schema.table}",
                location=loaded[name].metadata["location"],
                lake_table=str(name),
                columns=_columns(schema),
            )
            for name, schema in schemas.items()
        ),
    )


_USUAL = {"host": "localhost", "port": "5432"}


def _columns(schema: TableSchema) -> tuple[tuple[str, str, str, str], ...]:
    columns: list[tuple[str, str, str, str]] = []
    for column in schema.live:
        columns.append((column.name, column.type_name, column.lake_name, column.spark_type))
        if column.exact:
            columns.append((column.name, column.type_name, column.exact_name, "string"))
    return tuple(columns)


def operator_lineage() -> Any:
    """Return what was noted, as the OpenLineage provider wants it; None if nothing was."""
    if not _noted:
        return None
    from airflow.providers.openlineage.extractors.base import OperatorLineage
    from openlineage.client.facet_v2 import RunFacet

    lineage = _noted.pop()
    facts = RunFacet().with_additional_properties(**lineage.brought)
    return OperatorLineage(
        inputs=[_source(lineage, table) for table in lineage.tables],
        outputs=[_lake(lineage, table) for table in lineage.tables],
        run_facets={"slotlake": facts},
    )


def _source(lineage: Lineage, table: TableLineage) -> Any:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import schema_dataset

    columns = {name: type_name for name, type_name, _, _ in table.columns}
    fields = [schema_dataset.SchemaDatasetFacetFields(name, kind) for name, kind in columns.items()]
    facets = {"schema": schema_dataset.SchemaDatasetFacet(fields=fields), "version": _version(lineage)}
    return InputDataset(namespace=lineage.source, name=table.source, facets=facets)


def _lake(lineage: Lineage, table: TableLineage) -> Any:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import column_lineage_dataset as columns
    from openlineage.client.facet_v2 import schema_dataset, symlinks_dataset

    fields = [schema_dataset.SchemaDatasetFacetFields(name, kind) for _, _, name, kind in table.columns]
    of_columns = {
        name: columns.Fields(
            inputFields=[
                columns.InputField(
                    lineage.source,
                    table.source,
                    source,
                    [columns.Transformation(type="DIRECT", subtype="IDENTITY")],
                )
            ]
        )
        for source, _, name, _ in table.columns
    }
    symlink = symlinks_dataset.Identifier(lineage.warehouse, table.lake_table, "TABLE")
    namespace, name = _place(table.location)
    return OutputDataset(
        namespace=namespace,
        name=name,
        facets={
            "schema": schema_dataset.SchemaDatasetFacet(fields=fields),
            "columnLineage": columns.ColumnLineageDatasetFacet(fields=of_columns),
            "symlinks": symlinks_dataset.SymlinksDatasetFacet(identifiers=[symlink]),
            "version": _version(lineage),
        },
    )


def _version(lineage: Lineage) -> Any:
    from openlineage.client.facet_v2 import dataset_version_dataset

    return dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=lineage.brought["end_lsn"])


def _place(location: str) -> tuple[str, str]:
    """Return a place's namespace and name, as OpenLineage writes them: ``s3://bucket`` and ``a/b``."""
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        return "file", parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.hostname or ''}", parts.path.strip("/")
