"""The pipeline file: its grammar, its defaults, and the error messages for a wrong file.

One YAML file describes one pipeline. Its shape is fixed, because other programs write such files.  Every
key is checked; an unknown key is refused, with the nearest correct name, and so is a value that this
version does not support.  Loading reads only this file and uses no network, so Airflow can do it each time
it parses a DAG file.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator

from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.config.airflow import AirflowSection
from slotlake.infra.config.airflow_connection import connection_text
from slotlake.infra.config.expectations import ExpectationsSection, require_project
from slotlake.infra.config.notify import NotifySection
from slotlake.infra.config.password import with_password
from slotlake.infra.config.sections import (
    ChangeLogSection,
    LakeSection,
    MaintenanceSection,
    Mode,
    MonitorSection,
    Section,
    SourceSection,
    StateSection,
    TableSection,
    one_or_several,
)
from slotlake.infra.config.spark import SparkSection
from slotlake.infra.config.strict_yaml import in_yamls_words, parsed
from slotlake.infra.config.table_names import require_names
from slotlake.infra.config.types import Lossy, TypesSection, no_variant
from slotlake.infra.config.verify import VerifySection
from slotlake.infra.state.notes import DROPPED, STORED
from slotlake.spark.storage.location import S3_SCHEMES, Location
from slotlake.spark.storage.settings import StorageSettings

_AIRFLOW = "airflow:"
_SCHEME = re.compile(r"^file:(?=/)(//(?=/))?")
_PIPELINE_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")


class PipelineFile(Section):
    """One pipeline, as its file describes it. ``path``: the absolute path of the file."""

    name: str
    source: SourceSection
    lake: LakeSection
    new_tables: Literal["copy", "ignore"] = "copy"
    on_conflict: Literal["apply", "skip", "fail"] = "apply"
    on_trouble: Literal["set_aside", "stop"] = "set_aside"
    on_drop: Literal["keep", "drop"] = "keep"
    on_delete: Literal["delete", "mark"] = "delete"
    mode: Annotated[tuple[Mode, ...], Field(min_length=1, strict=False)] = ("mirror",)
    on_lossy: Lossy = "quarantine"
    types: TypesSection = TypesSection()
    permissions: Literal["private", "group", "umask"] = "private"
    tables: dict[str, TableSection] = Field(default_factory=dict)
    changelog: ChangeLogSection = ChangeLogSection()
    state: StateSection = StateSection()
    airflow: AirflowSection = AirflowSection()
    maintenance: MaintenanceSection = MaintenanceSection()
    verify: VerifySection = VerifySection()
    monitor: MonitorSection = MonitorSection()
    notify: NotifySection = NotifySection()
    expectations: ExpectationsSection = ExpectationsSection()
    spark: SparkSection = SparkSection()
    path: Annotated[Path, Field(strict=False, exclude=True)]

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if not _PIPELINE_NAME.match(name):
            raise ValueError("a name has at most 63 letters, digits, - and _, and starts with a letter")
        return name

    @field_validator("mode", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return one_or_several(value)

    @field_validator("tables", mode="before")
    @classmethod
    def _none_is_default(cls, value: object) -> object:
        if value is None:
            return {}
        if isinstance(value, list):
            if not all(isinstance(name, str) for name in value):
                raise ValueError("a list of tables has names only; choices for one need a mapping")
            return {name: {} for name in value}
        if isinstance(value, dict):
            return {name: {} if options is None else options for name, options in value.items()}
        return value

    @model_validator(mode="before")
    @classmethod
    def _empty_sections(cls, data: Any) -> Any:
        """Take an empty section (YAML null, as ``airflow:`` without keys) as the defaults."""
        if isinstance(data, dict):
            return {k: v for k, v in data.items() if not (v is None and k in _OPTIONAL_SECTIONS)}
        return data

    _no_variant = field_validator("types", mode="before")(no_variant)
    _named_once = field_validator("tables")(require_names)
    _suites_of_a_project = model_validator(mode="after")(require_project)

    @model_validator(mode="after")
    def _both_in_stores(self) -> Self:
        if self.changelog.in_bucket and not Location(self.lake.warehouse).is_in_bucket:
            raise ValueError(
                "changelog.path is in an object store, but lake.warehouse is a folder: another machine that "
                "reads the change log needs the warehouse too; put both into a store"
            )
        return self

    @model_validator(mode="after")
    def _state_with_the_changelog(self) -> Self:
        if self.state.path is not None and self.state.in_bucket != self.changelog.in_bucket:
            raise ValueError(
                "state.path and changelog.path must both be in an object store, or both be folders: a "
                "machine that has only one of them cannot go on with what another machine began"
            )
        staging = self.lake.staging
        if self.state.in_bucket and staging is not None and staging.get_secret_value() == "local":
            raise ValueError(
                "lake.staging: local is a file of one machine, and state.path is for several: give "
                "lake.staging the address of a PostgreSQL database"
            )
        return self

    @model_validator(mode="after")
    def _copy_tasks_share_state(self) -> Self:
        if self.airflow.copy_tasks and not self.shares_state:
            raise ValueError(
                "airflow.copy_tasks: tasks on several workers copy together only if they share the state of "
                "the pipeline: name a place in an object store in changelog.path and state.path"
            )
        return self

    @property
    def state_dir(self) -> Path:
        """The folder of the notes, the lock, the change log and the reports.

        With the state in an object store (`state_bucket`) no note is in it: it is this machine's scratch.
        """
        if self.state.path is None:
            return self.local_state_dir
        if self.state.in_bucket:
            known = hashlib.sha256(self.state.path.encode()).hexdigest()[:12]
            return _cache_folder() / "pipelines" / f"{self.name}-{known}"
        return (self.path.parent / _SCHEME.sub("", self.state.path)).resolve() / self.name

    @property
    def local_state_dir(self) -> Path:
        """The state folder of a pipeline without the key `state.path`."""
        return self.path.parent / ".slotlake" / self.name

    @property
    def state_bucket(self) -> str | None:
        """The place in an object store that has the state; None if a folder has it."""
        if self.state.in_bucket:
            return self.state.path
        return self.changelog.path if self.changelog.in_bucket else None

    @property
    def state_place(self) -> str:
        """Where the state is, for messages."""
        return self.state_bucket or str(self.state_dir)

    @property
    def shares_state(self) -> bool:
        """Whether several machines are to work on the pipeline: the file says where its state is."""
        return self.state.path is not None or self.state_bucket is not None

    @property
    def dropped_note(self) -> Path:
        """If this file exists, the pipeline has been dropped and has no DAGs."""
        return DROPPED.of(self.state_dir).path

    @property
    def stored_note(self) -> Path:
        """If this file exists, the change log is in an object store, and notes here what it has."""
        return self.state_dir / "changelog" / STORED.name

    @property
    def changelog_dir(self) -> Path:
        """The archive of change log batches; of one in an object store, this machine's part."""
        if self.changelog.path is None or self.changelog.in_bucket:
            return self.state_dir / "changelog"
        return (self.path.parent / _SCHEME.sub("", self.changelog.path)).resolve()

    @property
    def copy_workers(self) -> int:
        """How many ranges of tables are copied at the same time on this machine."""
        workers = self.source.copy_workers or min(8, max(2, os.cpu_count() or 1))
        return min(workers, self.source.copy_connections or workers)

    @property
    def pool(self) -> str:
        """The Airflow pool; it has one place, so one task at a time uses the slot."""
        return f"slotlake_{self.source.slot}"

    def dsn(self) -> str:
        """Return the source's connection string; ``env:`` and ``airflow:`` are resolved."""
        value, where = self.source.dsn.get_secret_value(), f"{self.path.name}, source.dsn"
        if value.startswith(_AIRFLOW):
            tokens = self.source.password is None
            dsn = connection_text(value.removeprefix(_AIRFLOW), where, tokens=tokens)
        else:
            dsn = resolve_secret(value, where)
        return with_password(dsn, self.source.password, self.path)

    def lake_uri(self) -> str:
        """Return the catalog's URI; ``env:`` is resolved, and a relative SQLite path becomes absolute."""
        uri = resolve_secret(self.lake.uri.get_secret_value(), f"{self.path.name}, lake.uri")
        if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
            return f"sqlite:///{(self.path.parent / uri.removeprefix('sqlite:///')).resolve()}"
        return uri

    def lake_rest(self) -> dict[str, str]:
        """Return the properties for the REST catalog; ``env:`` and ``airflow:`` are resolved."""
        return {
            key: resolve_secret(value.get_secret_value(), f"{self.path.name}, lake.rest.{key}")
            for key, value in self.lake.rest.items()
        }

    def lake_staging(self) -> str:
        """Return the SQL catalog in which a REST server's tables are staged; empty: the server itself."""
        staging = self.lake.staging
        text = "catalog" if staging is None else staging.get_secret_value()
        if text == "catalog":
            return ""
        if text == "local":
            return f"sqlite:///{self.state_dir / 'staging.db'}"
        return resolve_secret(text, f"{self.path.name}, lake.staging")

    def lake_glue(self) -> dict[str, str]:
        """Return the settings of AWS Glue; ``env:`` and ``airflow:`` are resolved."""
        glue = self.lake.glue
        given: dict[str, Any] = {"endpoint": glue.endpoint, "catalog_id": glue.catalog_id}
        given |= {"access_key": glue.access_key, "secret_key": glue.secret_key}
        given |= {"session_token": glue.session_token}
        texts = {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value
            for name, value in given.items()
            if value is not None
        }
        return {
            name: resolve_secret(text, f"{self.path.name}, lake.glue.{name}") for name, text in texts.items()
        }

    def lake_storage(self) -> StorageSettings:
        """Return how the warehouse's object store is reached; ``env:`` and ``airflow:`` are resolved.

        Keys for AWS Glue open the bucket too, if it has none of its own: Spark has one pair for both.
        """
        given: dict[str, Any] = {}
        for key in self.lake.storage.model_fields_set:
            value = getattr(self.lake.storage, key)
            text = value.get_secret_value() if isinstance(value, SecretStr) else value
            is_text = isinstance(text, str)
            given[key] = resolve_secret(text, f"{self.path.name}, lake.storage.{key}") if is_text else text
        if "access_key" not in given and Location(self.lake.warehouse).scheme in S3_SCHEMES:
            given |= {name: text for name, text in self.lake_glue().items() if name in _KEYS}
        return StorageSettings(**given)

    def remote(self) -> str | None:
        """Return the Spark Connect server's address, resolved; it may hold a token."""
        remote = self.spark.remote
        where = f"{self.path.name}, spark.remote"
        return None if remote is None else resolve_secret(remote.get_secret_value(), where)

    def spark_conf(self) -> dict[str, str]:
        """Return the properties for Spark; ``env:`` and ``airflow:`` are resolved."""
        return {
            name: resolve_secret(value.get_secret_value(), f"{self.path.name}, spark.conf.{name}")
            for name, value in self.spark.conf.items()
        }

    def warehouse(self) -> str:
        """Return the warehouse as a URI; a plain path is relative to the pipeline file."""
        if "://" in self.lake.warehouse:
            return self.lake.warehouse.rstrip("/")
        return (self.path.parent / self.lake.warehouse.removeprefix("file:")).resolve().as_uri()


def _cache_folder() -> Path:
    """Where this machine may write what nobody misses; as `infra.launch.folders` has it, without a probe."""
    chosen = os.environ.get("SLOTLAKE_HOME")
    if chosen:
        return Path(chosen).absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "slotlake"


_KEYS = frozenset({"access_key", "secret_key", "session_token"})
_SECTIONS = frozenset(
    {"tables", "changelog", "state", "airflow", "maintenance", "verify", "monitor", "notify", "spark"}
)
_CHOICES = frozenset({"on_conflict", "on_trouble", "on_drop", "on_delete", "on_lossy", "new_tables"})
_OPTIONAL_SECTIONS = _SECTIONS | _CHOICES | {"expectations", "types", "permissions"}


def load_pipeline(path: str | os.PathLike[str]) -> PipelineFile:
    """Read and check a pipeline file.

    Raises:
        PipelineFileError: the file is missing, is not YAML, or has a wrong key or value.
    """
    return pipeline_of(_read_yaml(file := Path(path).expanduser().resolve()), file)


def pipeline_of(data: Any, file: Path) -> PipelineFile:
    """Check the content of a pipeline file, as YAML gives it, that is or will be at this absolute path.

    Raises:
        PipelineFileError: as `load_pipeline`.
    """
    if not isinstance(data, dict):
        raise PipelineFileError("the file is not a mapping", where=str(file), way_out=_SHAPE)
    try:
        return PipelineFile.model_validate({**data, "path": file})
    except ValidationError as error:
        problems = [_problem(entry, data) for entry in error.errors(include_url=False, include_input=False)]
        raise PipelineFileError("; ".join(problems), where=str(file), way_out=_SHAPE) from None


_SHAPE = "correct the file; docs/pipeline-file.md lists every key, its values and its default"


def _read_yaml(file: Path) -> Any:
    try:
        return parsed(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PipelineFileError(
            "there is no such pipeline file", where=str(file), way_out="give the path of a YAML file"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineFileError(
            f"the file cannot be read: {error}", where=str(file), way_out="make it a readable file in UTF-8"
        ) from None
    except yaml.YAMLError as error:
        problem_place = getattr(error, "problem_mark", None)
        line = f", line {problem_place.line + 1}" if problem_place is not None else ""
        reason = getattr(error, "problem", None) or (str(error.args[0]) if error.args else "not YAML")
        raise PipelineFileError(
            f"the file is not valid YAML: {reason}", where=f"{file}{line}", way_out=_SHAPE
        ) from None


def _problem(entry: Any, data: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in entry["loc"])
    if entry["type"] == "extra_forbidden":
        return f"{where}: unknown key{_suggestion(entry['loc'])}"
    if entry["type"] == "missing":
        return f"{where}: missing"
    message = in_yamls_words(entry["msg"].removeprefix("Value error, "))
    return f"{where}: {message[0].lower()}{message[1:]}"


def _suggestion(location: tuple[Any, ...]) -> str:
    section: Any = PipelineFile
    for part in location[:-1]:
        field = section.model_fields.get(part) if hasattr(section, "model_fields") else None
        section = (
            TableSection if section is not None and field is None else getattr(field, "annotation", None)
        )
    keys = list(getattr(section, "model_fields", {}))
    close = difflib.get_close_matches(str(location[-1]), keys, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def resolve_secret(value: str, where: str) -> str:
    """Resolve ``env:NAME`` and ``airflow:CONN_ID``; return any other value unchanged.

    Raises:
        PipelineFileError: the variable or the connection does not exist, or cannot be read.
    """
    if value.startswith("env:"):
        name = value.removeprefix("env:")
        if not os.environ.get(name):
            raise PipelineFileError(
                f"the environment variable {name} is not set", where=where, way_out=f"export {name}=…"
            )
        return os.environ[name]
    if value.startswith(_AIRFLOW):
        return connection_text(value.removeprefix(_AIRFLOW), where)
    return value
