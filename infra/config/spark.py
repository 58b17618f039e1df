"""The section `spark` of the pipeline file (docs/spark.md)."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from slotlake.infra.config.sections import Section
from slotlake.spark.properties import FIXED_PROPERTIES

_LOCAL = re.compile(r"^local(\[(\*|[1-9][0-9]*)\])?$")
_CLUSTER = re.compile(r"^(spark://[^\s/,]+:\d+(,[^\s/,]+:\d+)*|yarn|k8s://\S+)$")
_COORDINATES = re.compile(r"^[^\s:,/]+:[^\s:,/]+:[^\s:,/]+$")
# Spark's properties that have a key of their own.
_OWN_KEYS = {
    "spark.master": "spark.master of the pipeline file",
    "spark.remote": "spark.remote of the pipeline file",
    "spark.driver.memory": "spark.driver_memory",
    "spark.jars": "spark.packages",
    "spark.jars.packages": "spark.packages",
}
_MEMORY = re.compile(r"^[1-9][0-9]*[kmgt]b?$", re.IGNORECASE)


class SparkSection(Section):
    """Which Spark does the work: a Connect server (``sc://…``), or one that slotlake starts (docs/spark.md).

    ``master``: ``local[…]`` for a Spark inside this process; a cluster's for a driver inside this process.
    ``packages``: Maven coordinates that replace the lock file's jars; ``cluster``: the cluster has the jars.
    """

    remote: SecretStr | None = None
    memory_mb: Annotated[int, Field(ge=1)] = 640
    driver_memory: str = "2g"
    master: str = "local[*]"
    conf: dict[str, SecretStr] = Field(default_factory=dict)
    packages: Annotated[tuple[str, ...], Field(strict=False)] | Literal["cluster"] | None = None

    @field_validator("remote")
    @classmethod
    def _connect(cls, remote: SecretStr | None) -> SecretStr | None:
        if remote is not None and not remote.get_secret_value().startswith(("sc://", "env:")):
            raise ValueError("write a Spark Connect server as sc://host:port, or env:NAME")
        return remote

    @field_validator("master")
    @classmethod
    def _known(cls, master: str) -> str:
        if not _LOCAL.match(master) and not _CLUSTER.match(master):
            raise ValueError(
                "write local, local[4] or local[*], or a cluster's spark://host:7077, yarn or "
                "k8s://https://host; for a Spark Connect server set spark.remote"
            )
        return master

    @field_validator("conf", mode="before")
    @classmethod
    def _texts(cls, conf: object) -> object:
        """Take YAML's numbers and booleans as the text that Spark reads."""
        if not isinstance(conf, dict):
            return conf
        return {
            name: str(value).lower() if isinstance(value, bool | int | float) else value
            for name, value in conf.items()
        }

    @field_validator("conf")
    @classmethod
    def _free_properties(cls, conf: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name in conf:
            if not name.startswith("spark."):
                raise ValueError(f"{name!r} is no Spark property: their names begin with spark.")
            if name in _OWN_KEYS:
                raise ValueError(f"{name} cannot be given here: use {_OWN_KEYS[name]}")
            if name in FIXED_PROPERTIES:
                raise ValueError(f"{name} cannot be given: slotlake needs its own value for right results")
        return conf

    @field_validator("packages")
    @classmethod
    def _coordinates(
        cls, packages: tuple[str, ...] | Literal["cluster"] | None
    ) -> tuple[str, ...] | Literal["cluster"] | None:
        wrong = [] if packages is None or packages == "cluster" else packages
        for each in wrong:
            if not _COORDINATES.match(each):
                raise ValueError(f"{each!r} is no Maven coordinate: write group:artifact:version, or cluster")
        return packages

    @field_validator("driver_memory")
    @classmethod
    def _memory(cls, memory: str) -> str:
        if not _MEMORY.match(memory):
            raise ValueError("write a size as Spark does, for example 2g or 1500m")
        return memory

    @model_validator(mode="after")
    def _one_spark(self) -> Self:
        if self.remote is not None and self.is_on_cluster:
            raise ValueError("give remote or a cluster's master, not both: a Connect server has its own")
        if self.remote is not None and self.packages is not None:
            raise ValueError("packages cannot be given with remote: a Connect server has its own jars")
        if self.packages == "cluster" and not self.is_on_cluster:
            raise ValueError(
                "packages: cluster needs a cluster's master; a local Spark takes none from a cluster"
            )
        return self

    @property
    def is_on_cluster(self) -> bool:
        """Whether executors run on other machines."""
        return not _LOCAL.match(self.master)

    @property
    def cores(self) -> str:
        """How many cores the Spark inside this process uses: a number, or ``*`` for all."""
        match = _LOCAL.match(self.master)
        return (match[2] if match else None) or "1"
