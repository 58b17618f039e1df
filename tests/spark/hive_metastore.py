"""A Hive Metastore on this machine, for tests: the real one, of the jars that Spark has with it.

Its database is Derby in the folder given.  The tables for locks, which `schematool` makes in an installation,
are those of ``hive_locks.sql``.  With an object store it opens ``s3://`` by Hadoop's file system for S3, as
an installation does whose tables are there (``fs.s3.impl``); ``hive_s3.lock`` pins that file system.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from slotlake.decoder.errors import SetupError
from slotlake.infra.local.jars import fetched_jars, jars, locked_jars
from slotlake.infra.local.java import Java, find_java
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.infra.local.process import end_group, free_port, start
from slotlake.infra.local.runtime import pyspark_folder

_START_SECONDS_MAX = 60.0
_LOCKS = Path(__file__).with_name("hive_locks.sql")
_S3 = Path(__file__).with_name("hive_s3.lock")
_SITE = """<configuration>
<property><name>javax.jdo.option.ConnectionURL</name>
  <value>jdbc:derby:;databaseName={folder}/metastore_db;create=true</value></property>
<property><name>hive.metastore.warehouse.dir</name><value>{folder}/hive</value></property>
<property><name>datanucleus.schema.autoCreateAll</name><value>true</value></property>
<property><name>datanucleus.connectionPoolingType</name><value>none</value></property>
<property><name>hive.metastore.schema.verification</name><value>false</value></property>
<property><name>hive.async.log.enabled</name><value>false</value></property>
{more}</configuration>
"""


class LocalHiveMetastore:
    """One server over one folder; a context manager that starts and ends it. ``uri``: its address."""

    def __init__(
        self, folder: Path, *, java: Java | None = None, store: LocalObjectStore | None = None
    ) -> None:
        self.folder = folder.absolute()
        self._store = store
        self.uri = ""
        self._java = java
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the server.

        Raises:
            SetupError: it does not answer in time, or its jars cannot be had.
        """
        java = self._java or find_java()
        conf = self.folder / "conf"
        conf.mkdir(parents=True)
        (conf / "hive-site.xml").write_text(_SITE.format(folder=self.folder, more=self._files()))
        classes = f"{pyspark_folder()}/jars/*"
        if self._store is not None:
            own = fetched_jars(locked_jars(_S3), lambda: java)
            classes = ":".join([classes, *map(str, own), *map(str, jars(java, "s3"))])
        subprocess.run(
            [
                *(java.program, *java.options(), "-XX:TieredStopAtLevel=1"),
                f"-Dij.database=jdbc:derby:{self.folder}/metastore_db;create=true",
                *("-cp", classes, "org.apache.derby.tools.ij", str(_LOCKS)),
            ],
            cwd=self.folder,
            capture_output=True,
            check=True,
        )
        port = free_port()
        options = [
            "-Xmx256m",
            "-XX:TieredStopAtLevel=1",
            f"-Dderby.stream.error.file={self.folder}/derby.log",
        ]
        main = ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
        self._process = start(
            [
                *(java.program, *java.options(), *options, f"-Djava.io.tmpdir={self.folder}"),
                *("-cp", f"{conf}:{classes}", *main),
            ],
            self.folder / "metastore.log",
            environment=dict(os.environ),
            at_parents_end=signal.SIGKILL,
        )
        self.uri = f"thrift://127.0.0.1:{port}"
        self._await(port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the server."""
        if self._process is not None:
            end_group(self._process.pid)

    def _files(self) -> str:
        """What the server is told about the object store."""
        if self._store is None:
            return ""
        storage = self._store.storage
        names = {
            "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
            "fs.s3a.endpoint": storage["endpoint"],
            "fs.s3a.endpoint.region": storage["region"],
            "fs.s3a.path.style.access": "true",
            "fs.s3a.access.key": storage["access_key"],
            "fs.s3a.secret.key": storage["secret_key"],
            "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        }
        properties = (f"<property><name>{n}</name><value>{v}</value></property>" for n, v in names.items())
        return "\n".join([*properties, ""])

    def _await(self, port: int) -> None:
        give_up = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < give_up and self._process is not None and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        log = self.folder / "metastore.log"
        raise SetupError(
            "the Hive Metastore did not start",
            where=" / ".join(log.read_text(errors="replace").splitlines()[-3:]),
            way_out="see that Java is 17 or newer and that its port is free",
        )
