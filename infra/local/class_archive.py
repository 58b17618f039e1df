"""Java's archive of Spark's classes: parsed and checked once, and mapped by each Java that starts after that.

A third of the CPU time of a Spark's start is Java reading more than 10,000 classes (docs/adr/0097).  Java's
own means against it is class data sharing: a base archive with Java's classes, and one on top of it with
those that a first Spark used.

Java 21 never takes an archive for the class path that Spark gives, which has one jar twice.  The wheel's
gets another class path from its wrapper; a machine's own Java 21 goes without an archive.

Invariant: an archive is named after its Java and the Spark of the environment; Java itself ignores one that
does not fit, without a word.  It would end at one that was truncated, so the sizes stand in a file that is
written last.  A failure here only costs time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slotlake.infra.launch.folders import home, prepared
from slotlake.infra.local.java import Java

# Java would say on standard output that an archive does not fit.
_QUIET = "-Xlog:cds*=off"
_JAVA_WITHOUT = 18  # from this version on, only the wheel's takes one
_OLD_MAX = 2  # archives of other environments that stay: each has 190 MB
_SECONDS_MAX = 600.0
_SCRATCH = "making-classes-"
# Makes Spark load the classes that slotlake's statements need, and those of a Connect server, by its plugin.
_TRAINING = """
import sys
from pyspark import SparkContext
from pyspark.sql import SparkSession
folder, jars = sys.argv[1:]
catalog = "spark.sql.catalog.lake"
settings = {
    "spark.jars": jars,
    "spark.local.dir": folder,
    "spark.sql.warehouse.dir": folder,
    "spark.ui.enabled": "false",
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    catalog: "org.apache.iceberg.spark.SparkCatalog",
    catalog + ".type": "hadoop",
    catalog + ".warehouse": folder,
}
builder = SparkSession.builder.master("local[2]")
for key, value in settings.items():
    builder = builder.config(key, value)
session = builder.getOrCreate()
rows = "SELECT id, cast(id AS string) v, id % 7 k FROM range(1000)"
for statement in (
    f"CREATE TABLE lake.a.t USING iceberg TBLPROPERTIES ('format-version' = '3') AS {rows}",
    f"MERGE INTO lake.a.t t USING ({rows} WHERE id > 990) s ON t.id = s.id "
    "WHEN MATCHED AND s.id > 995 THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    "DELETE FROM lake.a.t WHERE k = 3",
    "SELECT k, count(*), max(v) FROM lake.a.t WHERE id > 5 GROUP BY k ORDER BY k",
    "SELECT x.id, y.v FROM lake.a.t x JOIN lake.a.t y ON x.id = y.id WHERE y.k = 3",
    "CALL lake.system.rewrite_data_files(table => 'a.t', options => map('rewrite-all', 'true'))",
):
    session.sql(statement).collect()
gateway = SparkContext._gateway
session.stop()
gateway.shutdown()
gateway.proc.stdin.close()
sys.exit(gateway.proc.wait())
"""


def archive_options(java: Java, spark_folder: Path) -> list[str]:
    """Return the options by which a Java that runs Spark uses its archive; none while there is no archive.

    Args:
        spark_folder: the folder of the installed Spark.
    """
    if not can_have_archive(java):
        return []
    base, top = _names(java, spark_folder)
    try:
        file = prepared("java", top) or home() / "java" / top
    except PermissionError:  # no cache folder, as in an image whose root is only read
        return []
    whole = _is_whole(file.with_name(base), file)
    return [f"-XX:SharedArchiveFile={file.with_name(base)}:{file}", _QUIET] if whole else []


def can_have_archive(java: Java) -> bool:
    """Return whether this Java would take an archive for Spark's class path."""
    return java.bundled or java.version < _JAVA_WITHOUT


def make_archive(java: Java, spark_folder: Path, jars: str, variables: Mapping[str, str]) -> Path:
    """Start a Spark whose Java writes down its classes at its end; delete old archives; return the new one.

    Args:
        spark_folder: the folder of the installed Spark.
        jars: the value of ``spark.jars``.
        variables: environment in which a Spark without an archive starts.

    Raises:
        OSError, subprocess.SubprocessError: it could not be made.
    """
    folder = home() / "java"
    folder.mkdir(parents=True, exist_ok=True)
    base, top = (folder / name for name in _names(java, spark_folder))
    for left in folder.glob(f"{_SCRATCH}*"):  # by one that was killed
        if time.time() - left.stat().st_mtime > _SECONDS_MAX:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=_SCRATCH) as scratch:
        new_base, new_top = Path(scratch, base.name), Path(scratch, top.name)
        if not base.exists():  # the other one remembers its path and its checksum
            _run([java.program, "-Xshare:dump", f"-XX:SharedArchiveFile={new_base}"], variables)
            new_base.replace(base)
        options = f"-XX:SharedArchiveFile={base} -XX:ArchiveClassesAtExit={new_top}"
        given = variables.get("SPARK_SUBMIT_OPTS", "")
        variables = {**variables, "SPARK_SUBMIT_OPTS": f"{given} -XX:TieredStopAtLevel=1 {options}"}
        _run([sys.executable, "-P", "-c", _TRAINING, scratch, jars], variables)
        checked = f"-XX:SharedArchiveFile={base}:{new_top}"
        _run([java.program, "-XX:+VerifySharedSpaces", checked, _QUIET, "-version"], variables)
        _sizes(top).unlink(missing_ok=True)
        new_top.replace(top)
    _sizes(top).write_text(_sizes_of(base, top))
    old = sorted(folder.glob("classes-*.jsa"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in old[2 * (1 + _OLD_MAX) :]:
        file.unlink(missing_ok=True)
        _sizes(file).unlink(missing_ok=True)
    return top


def _names(java: Java, spark_folder: Path) -> tuple[str, str]:
    """Return the names of the base archive and of the one on top, for these programs as they are now."""
    jars = spark_folder / "jars"
    places = (Path(java.program), jars)
    parts = [java.version, *((place, int(place.stat().st_mtime)) for place in places)]
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return f"classes-{key}.base.jsa", f"classes-{key}.jsa"


def _is_whole(base: Path, top: Path) -> bool:
    try:
        return _sizes(top).read_text() == _sizes_of(base, top)
    except OSError:
        return False


def _sizes(archive: Path) -> Path:
    return archive.with_suffix(".sizes")


def _sizes_of(*files: Path) -> str:
    return " ".join(str(file.stat().st_size) for file in files)


def _run(command: Sequence[str], variables: Mapping[str, str]) -> None:
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise OSError(lines[-1])
