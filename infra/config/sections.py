"""The sections of the pipeline file: their keys, their defaults, and the checks of single sections.

Add a new key here, and a line about it to docs/pipeline-file.md.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from slotlake.infra.config.expectations import SuiteChoice
from slotlake.infra.config.store_kind import require_known
from slotlake.infra.config.types import Lossy, Representation, one_representation
from slotlake.spark.layout import parse_partition, parse_sort

_SLOT_NAME = re.compile(r"^[a-z0-9_]{1,63}$")
Operation = Literal["insert", "update", "delete", "truncate"]
Mode = Literal["mirror", "history", "append"]
ReaderName = Literal[
    "spark",
    "duckdb",
    "trino",
    "pyiceberg",
    "polars",
    "snowflake",
    "bigquery",
    "athena",
    "databricks",
    "clickhouse",
    "starrocks",
]
_NAMESPACE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+:")
_FILE_URI = re.compile(r"^file:(///|/(?!/))")
_BUCKET = re.compile(r"^(s3|s3a|gs|abfss?)://[^/]+")
_NOT_IN_KEYS = re.compile(r"[?#\x00-\x1f\x7f]")
_ENDPOINT = re.compile(r"^(https?://[^/\s]+(/\w+)?/?$|env:\w+$)")
_STAGING = ("sqlite:////", "postgresql://", "postgresql+psycopg://", "env:", "airflow:")
_FUNCTION = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")


class Section(BaseModel):
    """A part of the pipeline file; it refuses unknown keys and values of a wrong type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def one_or_several(value: object) -> object:
    """Return a list: a single word becomes a list of one, None an empty list."""
    return [value] if isinstance(value, str) else [] if value is None else value


class PasswordSection(Section):
    """Where the source's password comes from, if it is not in the dsn: a program and its arguments."""

    command: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]

    @model_validator(mode="before")
    @classmethod
    def _only_a_command(cls, value: object) -> object:
        if isinstance(value, dict) and not isinstance(value.get("command"), str):
            return value
        raise ValueError(
            "write {command: [program, argument]}, a list that no shell takes apart; a password that stays "
            "is put into dsn, PGPASSWORD or ~/.pgpass"
        )


class SourceSection(Section):
    """Where the changes come from: one database, one slot, some publications."""

    dsn: SecretStr
    password: PasswordSection | None = None
    publications: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    partitions: Literal["root", "leaves"] = "root"
    slot: str
    streaming: Literal["parallel", "on", "off"] | None = None
    memory_mb: Annotated[int, Field(ge=1)] = 64
    copy_workers: Annotated[int, Field(ge=1, le=64)] | None = None
    copy_connections: Annotated[int, Field(ge=1, le=1000)] | None = None
    copy_seconds_per_sync: Annotated[float, Field(gt=0, strict=False)] = 20.0
    two_phase: bool = False
    origin: Literal["any", "none"] = "any"
    binary: bool = False
    bulk: bool = True
    messages: bool = False
    failover: Literal["auto"] | bool = "auto"
    plugin: Literal["pgoutput", "test_decoding", "wal2json"] = "pgoutput"

    @field_validator("slot")
    @classmethod
    def _slot_name(cls, slot: str) -> str:
        if not _SLOT_NAME.match(slot):
            raise ValueError("a slot name has 1 to 63 lower-case letters, digits and underscores")
        return slot

    @field_validator("streaming", mode="before")
    @classmethod
    def _yaml_booleans(cls, value: object) -> object:
        return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _only_pgoutput(self) -> Self:
        pgoutput_options = {
            "streaming": self.streaming not in (None, "off"),
            "two_phase": self.two_phase,
            "binary": self.binary,
            "origin": self.origin == "none" and self.plugin == "wal2json",
        }
        refused = [name for name in pgoutput_options if pgoutput_options[name]]
        if self.plugin != "pgoutput" and refused:
            raise ValueError(f"the plugin {self.plugin} does not support {', '.join(refused)}")
        return self


class KeepPointsSection(Section):
    """How many points readers can query: the newest ``count`` ones, none older than ``days``."""

    count: Annotated[int, Field(ge=1)] = 100
    days: Annotated[float, Field(gt=0, strict=False)] = 7.0


class StorageSection(Section):
    """How the warehouse's object store is reached; without keys as other programs of this machine do."""

    endpoint: str | None = None
    region: str | None = None
    access_key: SecretStr | None = None
    secret_key: SecretStr | None = None
    session_token: SecretStr | None = None
    path_style: bool | None = None
    encryption: Literal["AES256", "aws:kms"] | None = None
    kms_key: str | None = None

    @field_validator("endpoint")
    @classmethod
    def _address(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and not _ENDPOINT.match(endpoint):
            raise ValueError("write the server's address as https://host:port, or env:NAME")
        return endpoint

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("give access_key and secret_key together, or neither of them")
        if self.kms_key is not None and self.encryption != "aws:kms":
            raise ValueError("kms_key is for encryption: aws:kms")
        return self


class GlueSection(Section):
    """AWS Glue, where it is not that of the user's own account, or not opened by this machine's keys."""

    endpoint: str | None = None
    catalog_id: str | None = None
    access_key: SecretStr | None = None
    secret_key: SecretStr | None = None
    session_token: SecretStr | None = None

    @field_validator("endpoint")
    @classmethod
    def _address(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and not _ENDPOINT.match(endpoint):
            raise ValueError("write the server's address as https://host:port, or env:NAME")
        return endpoint

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("give access_key and secret_key together, or neither of them")
        return self


class LakeSection(Section):
    """Where the tables are: an Iceberg catalog, a warehouse folder, a namespace."""

    catalog: str = "lake"
    uri: SecretStr
    warehouse: str
    namespace: str
    keep_points: KeepPointsSection = KeepPointsSection()
    publish: Literal["atomic", "per_table"] = "atomic"
    format: Literal[2, 3] = 3
    readers: Annotated[tuple[ReaderName, ...], Field(strict=False)] = ()
    views: bool = False
    rest: dict[str, SecretStr] = Field(default_factory=dict)
    staging: SecretStr | None = None
    glue: GlueSection = GlueSection()
    storage: StorageSection = StorageSection()

    @field_validator("catalog", "namespace")
    @classmethod
    def _identifier(cls, value: str) -> str:
        if not _NAMESPACE.match(value):
            raise ValueError("a name has letters, digits and underscores, and does not start with a digit")
        return value

    @field_validator("warehouse")
    @classmethod
    def _prefix(cls, warehouse: str) -> str:
        return _address(warehouse)

    @field_validator("staging")
    @classmethod
    def _staging_catalog(cls, value: SecretStr | None) -> SecretStr | None:
        text = "local" if value is None else value.get_secret_value()
        if text not in ("local", "catalog") and not text.startswith(_STAGING):
            raise ValueError("write catalog, local, postgresql+psycopg://… or env:NAME")
        return value

    @model_validator(mode="after")
    def _only_rest(self) -> Self:
        rest_keys = [name for name in ("rest", "publish", "staging") if name in self.model_fields_set]
        if "storage" in self.model_fields_set and not _BUCKET.match(self.warehouse):
            raise ValueError("storage is for a warehouse in an object store (s3://…, gs://…, abfss://…)")
        require_known(self.warehouse, self.storage.model_fields_set, self.storage.endpoint)
        if rest_keys and self.uri.get_secret_value().startswith(("sqlite", "postgres")):
            others = "" if rest_keys != ["publish"] else ", AWS Glue or a Hive Metastore"
            names = " and ".join(rest_keys)
            raise ValueError(f"{names} can be given for a REST catalog (https://…){others} only")
        return self


class TableSection(Section):
    """The settings of one table; the default is an exact mirror of the whole table."""

    mode: Annotated[tuple[Mode, ...], Field(min_length=1, strict=False)] | None = None
    on_conflict: Literal["apply", "skip", "fail"] | None = None
    on_trouble: Literal["set_aside", "stop"] | None = None
    on_drop: Literal["keep", "drop"] | None = None
    on_delete: Literal["delete", "mark"] | None = None
    format: Literal[2, 3] | None = None
    partition_by: Annotated[tuple[str, ...], Field(strict=False)] = ()
    sort_by: Annotated[tuple[str, ...], Field(strict=False)] = ()
    on_lossy: Lossy | dict[str, Lossy] | None = None
    types: dict[str, Representation] = Field(default_factory=dict)
    filter: Annotated[tuple[str, ...], Field(strict=False)] = ()
    columns: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = None
    operations: Annotated[tuple[Operation, ...], Field(min_length=1, strict=False)] | None = None
    expectations: Annotated[tuple[SuiteChoice, ...], Field(strict=False)] = ()
    exclude: bool = False

    @field_validator("filter", "mode", "partition_by", "sort_by", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return one_or_several(value)

    @field_validator("expectations", mode="before")
    @classmethod
    def _suites(cls, value: object) -> object:
        """Take one suite, by its name or as a mapping, as a list of one."""
        return [value] if isinstance(value, dict) else one_or_several(value)

    @field_validator("filter")
    @classmethod
    def _conditions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(each.strip() for each in value):
            raise ValueError("write an SQL condition or a list of conditions; a condition must not be empty")
        return tuple(each.strip() for each in value)

    @field_validator("partition_by")
    @classmethod
    def _partition(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_partition(value)
        return value

    @field_validator("sort_by")
    @classmethod
    def _sort(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_sort(value)
        return value

    @model_validator(mode="after")
    def _one_representation(self) -> Self:
        one_representation(self.types, self.on_lossy)
        if self.exclude and self.model_fields_set != {"exclude"}:
            raise ValueError("exclude leaves the table out, so nothing else can be chosen for it")
        return self

    @field_validator("columns", "operations", "mode")
    @classmethod
    def _once(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError("a value is there twice")
        return value


def _address(address: str) -> str:
    """Refuse a place in an object store that no store, or not Spark, can keep."""
    scheme, separator, place = address.partition("://")
    if not separator or scheme == "file":
        return address
    if scheme != scheme.lower():
        raise ValueError(f"write the address with a scheme in lower case: {scheme.lower()}://{place}")
    bucket, _, prefix = place.rstrip("/").partition("/")
    if not bucket:
        raise ValueError("name a bucket: s3://bucket/prefix")
    if scheme in ("abfs", "abfss") and not all(bucket.partition("@")[::2]):
        raise ValueError(
            f"name container and account: {scheme}://container@account.dfs.core.windows.net/prefix"
        )
    if any(part in ("", ".", "..") for part in prefix.split("/") if prefix) or _NOT_IN_KEYS.search(prefix):
        raise ValueError(
            "the prefix after the bucket has an empty part, a part . or .., a control character, or one "
            "of the characters ? and #; choose another prefix"
        )
    return address


class PlacedSection(Section):
    """What lies in a folder or in an object store; ``path`` says where."""

    path: str | None = None

    @field_validator("path")
    @classmethod
    def _place(cls, path: str | None) -> str | None:
        """Refuse other addresses: they would become a folder of that name next to the pipeline file."""
        if path is not None and _BUCKET.match(path):
            return _address(path)
        if _SCHEME.match(path or "") and not _FILE_URI.match(path or ""):
            raise ValueError("write a folder, file:///…, s3://bucket/prefix, gs://… or abfss://…")
        return path

    @property
    def in_bucket(self) -> bool:
        """Whether it is in an object store."""
        return self.path is not None and _BUCKET.match(self.path) is not None


class ChangeLogSection(PlacedSection):
    """Where batches are archived, and for how long."""

    keep_days: Annotated[float, Field(ge=0, strict=False)] = 7.0
    batch_bytes_max: Annotated[int, Field(ge=1 << 20)] = 1 << 30


class StateSection(PlacedSection):
    """Where a pipeline keeps what must outlive a machine, besides its lake and its change log."""


class MaintenanceSection(Section):
    """How maintenance keeps the tables small and fast to read (docs/maintenance.md).

    ``in_sync``: whether a sync packs the small files of a table that it changed, when they have become many.
    """

    in_sync: bool = True
    target_file_mb: Annotated[int, Field(ge=8, le=4096)] = 128
    minutes_max: Annotated[float, Field(gt=0, strict=False)] = 15.0
    unused_minutes: Annotated[float, Field(ge=0, strict=False)] = 5.0
    orphan_hours: Annotated[float, Field(ge=1, strict=False)] = 24.0


class MonitorSection(Section):
    """When `cdc_monitor` runs, and the thresholds of its alarms (docs/operations.md); null: no alarm.

    ``on_warning``: a function (``package.module:function``) that Airflow calls for an alarm.
    """

    schedule: str | int | None = 300
    warn_lag_seconds: Annotated[float, Field(gt=0, strict=False)] | None = 3600.0
    warn_retained_bytes: Annotated[int, Field(gt=0)] | None = 10 << 30
    warn_invalidation_minutes: Annotated[float, Field(gt=0, strict=False)] | None = 60.0
    warn_transaction_seconds: Annotated[float, Field(gt=0, strict=False)] | None = 1800.0
    on_warning: str | None = None

    @field_validator("schedule")
    @classmethod
    def _positive(cls, value: str | int | None) -> str | int | None:
        if isinstance(value, int) and value < 1:
            raise ValueError("write a number of seconds, 1 or more")
        return value

    @field_validator("on_warning")
    @classmethod
    def _function(cls, value: str | None) -> str | None:
        if value is not None and not _FUNCTION.match(value):
            raise ValueError("write a function as package.module:function")
        return value
