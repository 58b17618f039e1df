"""What a Spark session needs from this machine: a Java, the jars, and the environment that names them.

``spark/`` never looks for these itself; whoever opens a session passes them in.
``python -m slotlake.infra.local.runtime s3`` prepares all of it, for an image or a new environment.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.local.class_archive import archive_options, can_have_archive, make_archive
from slotlake.infra.local.jars import jars
from slotlake.infra.local.java import Java, environment, find_java, trust_options

_LOGGED = Path(__file__).parent / "spark_conf" / "log4j2.properties"
# Spark puts its folder of settings before its jars, and an archive of classes allows no files in it.
_NO_CONF = "no-conf"
LOG_LEVEL = "SLOTLAKE_SPARK_LOG_LEVEL"  # the variable that log4j2.properties reads


@dataclass(frozen=True)
class SparkRuntime:
    """A Java and the jars for it."""

    java: Java
    jar_paths: tuple[Path, ...]

    @property
    def jars(self) -> str:
        """The value of ``spark.jars``."""
        return ",".join(str(path) for path in self.jar_paths)

    def environment(self, *, on_cluster: bool = False) -> dict[str, str]:
        """Variables to set before the first session of a process, or in that of a Spark server.

        Args:
            on_cluster: executors of other machines must reach this one, and have a Python of their own.
        """
        here = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        spark_home = pyspark_folder()
        options = [f"-Dlog4j2.configurationFile={_LOGGED.as_uri()}", *archive_options(self.java, spark_home)]
        return {
            **environment(self.java, more=options),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            **({} if on_cluster else here),
            # Set for another Spark, it would make this one run with that one's jars or settings.
            "SPARK_HOME": str(spark_home),
            "SPARK_CONF_DIR": str(spark_home / _NO_CONF),
        }


def spark_runtime(
    storage: str = "", *, report_line: Callable[[str], None] = lambda text: None, with_jars: bool = True
) -> SparkRuntime:
    """Find Java, fetch the jars if need be.

    Args:
        storage: scheme of the object store that Spark reads and writes; empty: none.
        report_line: called with one line per jar that must be fetched.
        with_jars: whether the lock file's jars are needed.

    Raises:
        SetupError: no Java that fits, or a jar that cannot be had.
    """
    java = find_java()
    paths = jars(java, storage, report_line=report_line) if with_jars else []
    return SparkRuntime(java, tuple(paths))


def pyspark_folder() -> Path:
    """Where the installed Spark is, found without importing it."""
    package = importlib.util.find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent


def _prepare(storage: str = "") -> None:
    """Fetch the jars and make the archive of classes, as far as they are not there."""
    runtime = spark_runtime(storage, report_line=lambda line: print(line, flush=True))  # noqa: T201
    trust_options()
    # Its failure is said, not passed over: an image without it would be a slow one, and nobody would know.
    if can_have_archive(runtime.java) and not archive_options(runtime.java, pyspark_folder()):
        make_archive(runtime.java, pyspark_folder(), runtime.jars, runtime.environment())


if __name__ == "__main__":
    try:
        _prepare(*sys.argv[1:2])
    except (SlotlakeError, OSError, subprocess.SubprocessError) as failed:
        sys.exit(str(failed))
