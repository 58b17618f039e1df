"""Spark as it is asked for: its properties, and the machines that it runs on.

Of the properties slotlake needs some for right results; others it only tunes, and a user may change them.
The machines are this one alone, or others, which see no file of this one.  Nothing here imports Spark: the
pipeline file is checked without it.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from slotlake.decoder.errors import SetupError

SENSITIVE_PROPERTIES: Final = (
    "(?i)secret|password|passphrase|token|credential|authorization|access[.-]?key|api[.-]?key"
)
# Of every session, analysts' too.  Spark would else put variables and the process's environment in place of
# ${…}, within literals and quoted names as well, before it reads a statement.
AS_WRITTEN: Final = {"spark.sql.variable.substitute": "false"}
_SQL_EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
# A MERGE of a micro-batch is small: each further partition costs a task, and adaptive execution
# splits what is large.  A large table has more: `spark.merge.sizes`.
SHUFFLE_PARTITIONS_MIN: Final = 4
# Set while a session runs.
NEEDED: Final = {
    **AS_WRITTEN,
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A catalog's properties hold what a REST server asks for; Spark knows passwords and tokens by itself.
    "spark.sql.redaction.options.regex": f"{SENSITIVE_PROPERTIES}|(?i)url",
}
TUNED: Final = {
    SHUFFLE_PARTITIONS: str(SHUFFLE_PARTITIONS_MIN),
    "spark.sql.adaptive.enabled": "true",
    # A batch is small beside its table: hashing it spares sorting the table (a third of a MERGE's CPU).
    "spark.sql.join.preferSortMergeJoin": "false",
    # Wide tables: a plan in an error message or log must not grow with the number of columns.
    "spark.sql.maxMetadataStringLength": "100",
}
# Given when Spark starts.
NEEDED_AT_START: Final = {
    "spark.sql.extensions": _SQL_EXTENSIONS,
    "spark.redaction.regex": SENSITIVE_PROPERTIES,
    **AS_WRITTEN,
}
FIXED_PROPERTIES: Final = frozenset({*NEEDED, *NEEDED_AT_START, "spark.sql.defaultCatalog"})

# In the configuration of a Spark that runs on one machine only: which one that is.
MACHINE_PROPERTY: Final = "spark.slotlake.machine"
_CONNECT_SECONDS: Final = 5


@dataclass(frozen=True)
class SparkChoices:
    """What a pipeline file says of the Spark that is started, besides its size.

    Attributes:
        cluster: the master of the cluster that has the executors (``spark://host:port``, ``yarn``,
            ``k8s://…``); None: all of Spark is in this process.
        conf: further properties; they replace those that slotlake only tunes.
    """

    cluster: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def way_out(self) -> str:
        """What to look at when it does not work."""
        return f"see that the cluster {self.cluster} runs Spark 4.1 and can be reached; docs/spark.md"


@cache
def this_machine() -> str:
    """Name this machine until it starts again: the kernel's boot, and what this process sees of its files."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{Path('/proc/self/ns/mnt').stat().st_ino}"
    except OSError:
        return platform.node()


def require_answering(master: str) -> None:
    """See that a standalone master takes connections: Spark itself would try for minutes.

    Args:
        master: ``spark://host:port``, perhaps several; of other kinds nothing is asked.

    Raises:
        SetupError: no master does.
    """
    if not master.startswith("spark://"):
        return
    failures = []
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except OSError as error:
            failures.append(f"{place}: {error.strerror or error}")
        else:
            return
    raise SetupError(
        "the Spark master does not answer",
        where="; ".join(failures),
        way_out="start it, or correct spark.master in the pipeline file",
    )
