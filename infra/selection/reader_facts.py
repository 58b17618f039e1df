"""What readers can read of a lake: one table, from their own documentation and from tests here.

`lake.readers` is judged by it (`infra.selection.readers`), and docs/reading.md shows it; a test compares
both.  Each fact names its source.  What neither a test nor a document says is `unknown`, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# file: only by the address of a table's metadata file, which is another one after each publication.
Answer = Literal["yes", "no", "file", "preview", "unknown"]
LOOKED_UP = "2026-11-23"
ASPECTS: Mapping[str, str] = {
    "format 2": "format 2",
    "format 3": "format 3",
    "sqlite": "SQLite",
    "postgresql": "PostgreSQL",
    "rest": "REST",
    "glue": "Glue",
    "hive": "Hive",
    "file": "folder",
    "s3": "S3",
    "gs": "GCS",
    "abfss": "Azure",
    "uuid": "`uuid`",
    "time": "`time`",
    "variant": "`variant`",
    "nanoseconds": "`timestamp_ns`",
}


@dataclass(frozen=True)
class Source:
    """Where facts come from.

    Attributes:
        title: of the document, or what was run.
        version: of the reader that it is about; "" if it does not say.
    """

    title: str
    version: str = ""


@dataclass(frozen=True)
class Reader:
    """One reader.

    Attributes:
        title: its name for people.
        version: that the facts are about.
        facts: aspect (`ASPECTS`) → the answer and its source; a missing one is unknown.
        notes: what a table cannot say.
        plain_names: names of columns with other characters than ASCII letters, digits and _ need care.
    """

    title: str
    version: str
    facts: Mapping[str, tuple[Answer, Source]]
    notes: str = ""
    plain_names: bool = False

    def answer(self, aspect: str) -> Answer:
        """Return whether the reader can read something.

        Args:
            aspect: one of `ASPECTS`.
        """
        return self.facts[aspect][0] if aspect in self.facts else "unknown"

    @property
    def sources(self) -> list[str]:
        """The sources of all facts, each once."""
        titles = (
            f"{source.title} ({source.version})" if source.version else source.title
            for _, source in self.facts.values()
        )
        return list(dict.fromkeys(titles))


_Facts = dict[str, tuple[Answer, Source]]


def _said(source: Source, yes: str = "", no: str = "", file: str = "", preview: str = "") -> _Facts:
    """Facts from one source: aspects by their answer, with commas between them."""
    answers: dict[Answer, str] = {"yes": yes, "no": no, "file": file, "preview": preview}
    return {
        aspect: (answer, source)
        for answer, aspects in answers.items()
        for aspect in filter(None, aspects.split(", "))
    }


_MATRIX = Source("the tests of slotlake, run with this version")
_TYPES = Source("docs/types.md, tried with this version")
_TRINO = Source("Trino documentation: Iceberg connector")
_SNOWFLAKE_V3 = Source("Snowflake release notes: Support for Apache Iceberg version 3 (General availability)")
_SNOWFLAKE_V2 = Source(
    "Snowflake release notes: Positional deletes for externally managed Apache Iceberg tables "
    "(General availability)"
)
_SNOWFLAKE_REST = Source(
    "Snowflake documentation: Configure a catalog integration for Apache Iceberg REST catalogs"
)
_SNOWFLAKE_ACCESS = Source("Snowflake documentation: Access Iceberg data in Snowflake")
_SNOWFLAKE_TABLES = Source("Snowflake documentation: Apache Iceberg tables")
_SNOWFLAKE_FILES = Source(
    "Snowflake: Build an Open Data Lakehouse with Iceberg Tables (catalog OBJECT_STORE)"
)
_BIGQUERY = Source("BigQuery documentation: Create Apache Iceberg external tables")
_BIGQUERY_V3 = Source("Google Cloud documentation: Use binary deletion vectors in Iceberg V3 tables")
_ATHENA = Source("Amazon Athena User Guide: Query Apache Iceberg tables")
_ATHENA_TYPES = Source("Amazon Athena User Guide: Supported data types for Iceberg tables in Athena")
_DATABRICKS = Source("Databricks documentation: What is Apache Iceberg in Databricks?", "runtime 16.4")
_DATABRICKS_V3 = Source("Databricks documentation: Use Apache Iceberg v3 features", "runtime 18.0")
_CLICKHOUSE = Source("ClickHouse documentation: Support matrix (data lakes)")
_CLICKHOUSE_CATALOGS = Source("ClickHouse documentation: DataLakeCatalog")
_CLICKHOUSE_TYPES = Source("ClickHouse documentation: Iceberg table engine, data types")
_STARROCKS = Source("StarRocks documentation: Iceberg catalog")

READERS: Mapping[str, Reader] = {
    "spark": Reader(
        "Spark",
        "4.1.4 with Iceberg 1.12.0",
        _said(_MATRIX, yes="format 2, format 3, sqlite, postgresql, rest, glue, hive, file, s3")
        | _said(_TYPES, yes="uuid, variant", no="time"),
        "It reads a `uuid` as text.",
    ),
    "duckdb": Reader(
        "DuckDB",
        "1.5.5",
        _said(_MATRIX, yes="format 2, format 3, rest, file, s3", file="sqlite, postgresql")
        | _said(_TYPES, yes="uuid, variant"),
    ),
    "pyiceberg": Reader(
        "pyiceberg",
        "0.12.0",
        _said(_MATRIX, yes="format 2, format 3, sqlite, postgresql, rest, glue, hive, file, s3")
        | _said(_TYPES, yes="uuid", no="variant"),
    ),
    "polars": Reader(
        "polars",
        "2.1.0",
        _said(_MATRIX, yes="format 2, format 3, sqlite, postgresql, rest, file"),
        "pyiceberg finds the files for it.",
    ),
    "trino": Reader(
        "Trino",
        "476",
        _said(_MATRIX, yes="format 2, postgresql, rest, file, s3", no="format 3")
        | _said(_TRINO, yes="glue, hive, uuid, time", no="variant, nanoseconds"),
        "Its JDBC catalog needs a database that Trino has a driver for.",
    ),
    "snowflake": Reader(
        "Snowflake",
        "May 2026",
        _said(_SNOWFLAKE_V3, yes="format 3, variant, nanoseconds")
        | _said(_SNOWFLAKE_V2, yes="format 2")
        | _said(_SNOWFLAKE_REST, yes="rest")
        | _said(_SNOWFLAKE_ACCESS, yes="glue")
        | _said(_SNOWFLAKE_TABLES, yes="s3, gs, abfss", no="file")
        | _said(_SNOWFLAKE_FILES, file="sqlite, postgresql"),
        "A table that is read by its metadata file must be refreshed with each new file.",
    ),
    "bigquery": Reader(
        "BigQuery",
        "November 2026",
        _said(_BIGQUERY, yes="format 2, glue, s3, gs, abfss", file="sqlite, postgresql, rest", no="file")
        | _said(_BIGQUERY_V3, preview="format 3", no="variant, nanoseconds"),
        "Of REST catalogs it reads Google's own, and some of other vendors through it.",
        plain_names=True,
    ),
    "athena": Reader(
        "Athena",
        "engine version 3",
        _said(
            _ATHENA,
            yes="format 2, glue, s3",
            no="format 3, sqlite, postgresql, rest, hive, file, gs, abfss, variant",
        )
        | _said(_ATHENA_TYPES, no="uuid, time, nanoseconds"),
        "Tables must be in the AWS Glue catalog.",
    ),
    "databricks": Reader(
        "Databricks",
        "runtime 18.0",
        _said(_DATABRICKS, yes="format 2, glue, hive, s3, gs, abfss", no="sqlite, postgresql, file")
        | _said(_DATABRICKS_V3, yes="format 3, variant"),
        "It reads tables of Unity Catalog, which is itself a REST catalog, and of Glue, Hive Metastore and "
        "Snowflake Horizon as foreign catalogs; other REST catalogs are not named.",
    ),
    "clickhouse": Reader(
        "ClickHouse",
        "26.2",
        _said(
            _CLICKHOUSE,
            yes="format 2, file, s3, gs, abfss",
            file="sqlite, postgresql",
            no="format 3, variant",
        )
        | _said(_CLICKHOUSE_CATALOGS, yes="rest, glue, hive")
        | _said(_CLICKHOUSE_TYPES, yes="uuid, nanoseconds"),
        "Each kind of catalog must be turned on by a setting.",
    ),
    "starrocks": Reader(
        "StarRocks",
        "3.4",
        _said(
            _STARROCKS,
            yes="format 2, postgresql, rest, glue, hive, s3, gs, abfss",
            no="format 3, sqlite, file",
        ),
        "Its page names tables of format 1 and 2.",
    ),
}
