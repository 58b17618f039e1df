"""Java, certificates and jars: found, refused with a reason, checked, kept."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from slotlake.decoder.errors import SetupError
from slotlake.infra.local import jars as jars_module
from slotlake.infra.local.jars import Jar, jars, locked_jars
from slotlake.infra.local.java import Java, environment, find_java, trust_options

pytestmark = pytest.mark.server

TOOLS = ("sh", "bash", "env", "dirname", "cat")


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with a shell and no Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(
            Path("/usr/bin") / name if Path("/usr/bin", name).exists() else Path("/bin") / name
        )
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


def _fake_java(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("version", "fits"),
    [("17.0.15", True), ("21", True), ("25.0.1", False), ("1.8.0_402", False), ("11.0.2", False)],
)
def test_only_a_java_that_spark_runs_on_is_taken(
    tmp_path: Path, bare_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, fits: bool
) -> None:
    _fake_java(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert find_java().bundled is not fits


def test_a_java_on_path_is_taken_and_a_broken_one_is_not(tmp_path: Path, bare_path: Path) -> None:
    program = _fake_java(tmp_path / "jdk", "21.0.1")
    (bare_path / "java").symlink_to(program)
    assert find_java() == Java(tmp_path / "jdk", 21, bundled=False)
    program.write_text("#!/bin/sh\nexit 1\n")
    assert find_java().bundled


def test_without_any_java_the_error_says_what_was_looked_at(
    tmp_path: Path, bare_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_java(tmp_path / "jdk", "25")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setattr("slotlake.infra.local.java._bundled", lambda: None)
    with pytest.raises(SetupError, match="no Java 17 or 21") as caught:
        find_java()
    assert "Java 25" in str(caught.value)
    assert "JAVA_HOME" in caught.value.way_out


def test_the_wheels_java_runs_without_the_module_that_it_lacks(bare_path: Path) -> None:
    java = find_java()
    assert java.bundled
    command = [
        java.program,
        "--add-modules=jdk.incubator.vector",
        "-Dgiven=a b",
        "-XshowSettings:properties",
        "-version",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "given = a b" in done.stderr


def test_certificates_of_the_system_reach_java(
    tmp_path: Path, bare_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = _self_signed_certificate()
    bundle = tmp_path / "bundle.pem"
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    bundle.write_bytes(broken + pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    options = trust_options()
    assert options[0] in environment(find_java())["SPARK_SUBMIT_OPTS"]
    from cryptography.hazmat.primitives.serialization import pkcs12

    store = Path(options[0].split("=", 1)[1]).read_bytes()
    certificates = pkcs12.load_pkcs12(store, None).additional_certs
    assert [found.certificate.subject.rfc4514_string() for found in certificates] == ["CN=company authority"]


def test_the_users_own_options_for_java_are_kept(bare_path: Path) -> None:
    found = environment(find_java(), {"SPARK_SUBMIT_OPTS": "-Dmine=1"})
    assert found["SPARK_SUBMIT_OPTS"].startswith("-Dmine=1")


def test_the_locked_jars_are_here_and_are_what_the_lock_says() -> None:
    import hashlib

    paths = jars(find_java())
    assert [path.name for path in paths] == [jar.file for jar in locked_jars()]
    for path, jar in zip(paths, locked_jars(), strict=True):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == jar.sha256


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Maven repository on loopback that serves one jar, named by an ivysettings file."""
    folder = tmp_path / "repository" / "org" / "example" / "thing" / "1.0"
    folder.mkdir(parents=True)
    (folder / "thing-1.0.jar").write_bytes(b"a jar")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, directory=str(tmp_path / "repository"), **options)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = tmp_path / "ivysettings.xml"
    root = f"http://127.0.0.1:{server.server_port}/"
    settings.write_text(
        f'<ivysettings><settings defaultResolver="r"/><resolvers><ibiblio name="r" m2compatible="true" '
        f'usepoms="false" useMavenMetadata="false" root="{root}"/></resolvers></ivysettings>'
    )
    monkeypatch.setenv("SLOTLAKE_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("SLOTLAKE_HOME", str(tmp_path / "home"))
    yield folder
    server.shutdown()
    server.server_close()


def _one_jar(monkeypatch: pytest.MonkeyPatch, sha256: str) -> None:
    monkeypatch.setattr(jars_module, "locked_jars", lambda: [Jar("org.example", "thing", "1.0", sha256)])


def test_a_jar_is_fetched_once_through_the_given_settings(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    _one_jar(monkeypatch, hashlib.sha256(b"a jar").hexdigest())
    said: list[str] = []
    first = jars(find_java(), report_line=said.append)
    (repository / "thing-1.0.jar").unlink()
    assert jars(find_java(), report_line=said.append) == first
    assert first[0].read_bytes() == b"a jar"
    assert said == ["fetching thing-1.0.jar"]
    assert sorted(path.name for path in first[0].parent.iterdir()) == ["fetch.lock", "thing-1.0.jar"]


def test_a_jar_with_another_digest_is_thrown_away(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _one_jar(monkeypatch, "0" * 64)
    with pytest.raises(SetupError, match="not the pinned one"):
        jars(find_java())
    assert not list((tmp_path / "home" / "jars").glob("*.jar"))


def test_a_jar_that_is_not_there_is_one_clear_error(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _one_jar(monkeypatch, "0" * 64)
    (repository / "thing-1.0.jar").unlink()
    with pytest.raises(SetupError, match="could not be fetched") as caught:
        jars(find_java())
    assert "SLOTLAKE_IVY_SETTINGS" in caught.value.way_out
    assert "thing" in caught.value.where


def test_proxy_variables_are_told_to_java(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert jars_module._proxy_options() == []
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert jars_module._proxy_options() == ["-Dhttps.proxyHost=proxy.example", "-Dhttps.proxyPort=3128"]


def test_a_spark_session_runs_and_writes_an_iceberg_table(session: SparkSession, tmp_path: Path) -> None:
    session.conf.set("spark.sql.catalog.runtime_test", "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set("spark.sql.catalog.runtime_test.type", "hadoop")
    session.conf.set("spark.sql.catalog.runtime_test.warehouse", f"file://{tmp_path}")
    session.sql("CREATE TABLE runtime_test.a.t (n int) USING iceberg TBLPROPERTIES ('format-version' = '3')")
    session.sql("INSERT INTO runtime_test.a.t VALUES (1), (2)")
    session.sql("MERGE INTO runtime_test.a.t t USING (SELECT 1 AS n) s ON t.n = s.n WHEN MATCHED THEN DELETE")
    assert [row.n for row in session.sql("SELECT n FROM runtime_test.a.t").collect()] == [2]
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def _self_signed_certificate() -> bytes:
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "company authority")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now, now.replace(year=now.year + 1)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
