"""The jars every Spark session is started with (and those of postgres.lock): fetched once, checked, kept.

A lock file (Spark's is ``jars.lock`` in this folder) pins each jar by Maven coordinates and SHA-256.
What is missing from the cache folder is fetched by the Ivy resolver that comes with Spark, from its default
repository or as ``SLOTLAKE_IVY_SETTINGS`` (an ivysettings.xml) says, and is kept only if its digest is the
pinned one; all later sessions name the files with ``spark.jars`` and need no network.  An image has them in
``SLOTLAKE_PREPARED``, fetched in the same way when it was built.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import subprocess
import tempfile
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slotlake.decoder.errors import SetupError
from slotlake.infra.launch.folders import home, prepared
from slotlake.infra.local.java import Java, trust_options

_LOCK_FILE = Path(__file__).with_name("jars.lock")
_STORAGE_LOCKS = {
    scheme: _LOCK_FILE.with_name(f"jars_{kind}.lock")
    for scheme, kind in {"s3": "s3", "gs": "google", "abfs": "azure", "abfss": "azure"}.items()
}
_FETCH_SECONDS_MAX = 900
_SETTINGS = """<ivysettings>
  <caches defaultCacheDir="{cache}"/>
  <settings defaultResolver="maven"/>
  <resolvers>
    <ibiblio name="maven" m2compatible="true" usepoms="false" useMavenMetadata="false"/>
  </resolvers>
</ivysettings>
"""


_NAMED_IN_A_FILE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="slotlake" module="jars"/>
  <dependencies>
    <dependency org="{jar.organisation}" name="{jar.module}" rev="{jar.revision}" transitive="false">
      <artifact name="{jar.module}" type="{jar.extension}" ext="{jar.extension}"{classifier}/>
    </dependency>
  </dependencies>
</ivy-module>
"""


@dataclass(frozen=True)
class Jar:
    """One pinned jar, or an archive of another kind."""

    organisation: str
    module: str
    revision: str
    sha256: str
    classifier: str = ""
    extension: str = "jar"

    @property
    def file(self) -> str:
        """Its file name in the cache folder."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.module}-{self.revision}{classifier}.{self.extension}"


def locked_jars(lock_file: Path = _LOCK_FILE) -> list[Jar]:
    """The pinned jars, in the order of the lock file."""
    lines = [line.split() for line in lock_file.read_text().splitlines() if line and not line.startswith("#")]
    return [_jar(coordinates, digest) for coordinates, digest in lines]


def _jar(coordinates: str, digest: str) -> Jar:
    organisation, module, revision, *classifier = coordinates.split(":")
    return Jar(organisation, module, revision, digest.removeprefix("sha256="), *classifier)


def jars(
    java: Java, storage: str = "", *, report_line: Callable[[str], None] = lambda text: None
) -> list[Path]:
    """Paths of all pinned jars, fetched and checked first if they are not here yet.

    Args:
        java: the Java that Ivy runs on.
        storage: scheme of an object store (``s3``) whose jars are needed, too.
        report_line: called with one line per jar that must be fetched.

    Raises:
        SetupError: a jar cannot be fetched, or is not the pinned one.
    """
    pinned = [*locked_jars(), *(locked_jars(_STORAGE_LOCKS[storage]) if storage in _STORAGE_LOCKS else ())]
    return fetched_jars(pinned, lambda: java, report_line=report_line)


def fetched_jars(
    pinned: list[Jar], java: Callable[[], Java], *, report_line: Callable[[str], None] = lambda text: None
) -> list[Path]:
    """Return the paths of jars; fetch those that this machine does not have.

    Args:
        pinned: the jars, with their digests.
        java: gives the Java that fetches; called only when a jar is missing.
        report_line: called with one line per jar that must be fetched.
    """
    ready = {jar: path for jar in pinned if (path := prepared("jars", jar.file)) is not None}
    rest = [jar for jar in pinned if jar not in ready]
    return [ready[jar] for jar in pinned] if not rest else _cached_jars(pinned, ready, java, report_line)


def _cached_jars(
    pinned: list[Jar],
    ready: Mapping[Jar, Path],
    java: Callable[[], Java],
    report_line: Callable[[str], None],
) -> list[Path]:
    """Return the paths of all jars; those that are not ready are in the cache folder, fetched if need be."""
    folder = home() / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    rest = [jar for jar in pinned if jar not in ready]
    if not all(_is_cached(folder / jar.file) for jar in rest):
        with (folder / "fetch.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two sessions at once: the second waits and finds them
            for jar in rest:
                if not _is_cached(folder / jar.file):
                    report_line(f"fetching {jar.file}")
                    _fetch(jar, folder, java())
    return [ready.get(jar, folder / jar.file) for jar in pinned]


def _is_cached(path: Path) -> bool:
    """True when the jar is here.  It got its name only after its digest was checked and it was on disk."""
    return path.is_file()


def _fetch(jar: Jar, folder: Path, java: Java) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix="incoming-") as scratch:
        failures = []
        for options in _attempts(java):
            failure = _ivy(jar, Path(scratch), java, options)
            if failure is None:
                _keep(jar, Path(scratch) / jar.file, folder)
                return
            failures.append(failure)
    raise SetupError(
        f"the jar {jar.organisation}:{jar.module}:{jar.revision} could not be fetched",
        where="; ".join(dict.fromkeys(failures)),
        way_out="check the network and proxy (HTTPS_PROXY), name a mirror with "
        f"SLOTLAKE_IVY_SETTINGS=<ivysettings.xml>, or put the file as "
        f"{folder / jar.file} yourself (SHA-256 {jar.sha256})",
    )


def _attempts(java: Java) -> list[list[str]]:
    """Trust stores to try: a machine's Java may know the company's authority, or only the system may."""
    own = java.options()
    return [own] if java.bundled else [own, trust_options()]


def _ivy(jar: Jar, scratch: Path, java: Java, options: list[str]) -> str | None:
    """Run Ivy for one jar; None when it was fetched, else the reason in a line."""
    settings = scratch / "ivysettings.xml"
    settings.write_text(_SETTINGS.format(cache=scratch / "cache"))
    command = [
        java.program, *options, *_proxy_options(), "-cp", str(_spark_jars() / "*"), "org.apache.ivy.Main",
        "-settings", os.environ.get("SLOTLAKE_IVY_SETTINGS") or str(settings),
        "-cache", str(scratch / "cache"), "-notransitive", "-types", jar.extension, *_wanted(jar, scratch),
        "-retrieve", str(scratch / "[artifact]-[revision](-[classifier]).[ext]"),
    ]  # fmt: skip
    try:
        outcome = subprocess.run(
            command, capture_output=True, text=True, timeout=_FETCH_SECONDS_MAX, check=False, cwd=scratch
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_FETCH_SECONDS_MAX} s"
    if outcome.returncode == 0 and (scratch / jar.file).is_file():
        return None
    return _reason(outcome.stdout + outcome.stderr)


def _wanted(jar: Jar, scratch: Path) -> list[str]:
    """Ivy's options that name the jar; a classifier or another extension can only be named in a file."""
    if not jar.classifier and jar.extension == "jar":
        return ["-dependency", jar.organisation, jar.module, jar.revision]
    file = scratch / "ivy.xml"
    classifier = f' m:classifier="{jar.classifier}"' if jar.classifier else ""
    file.write_text(_NAMED_IN_A_FILE.format(jar=jar, classifier=classifier))
    return ["-ivy", str(file)]


def _reason(output: str) -> str:
    """The line of Ivy's report that says why."""
    for pattern in (
        r"PKIX[^\n]*",
        r"\w+(?:Exception|Error): [^\n]*",
        r"ERRORS\s+([^\n]+)",
        r"not found[^\n]*",
    ):
        match = re.search(pattern, output)
        if match:
            return " ".join(match[0].split())[:300]
    return "Ivy failed: " + " ".join(output.split())[-300:]


def _keep(jar: Jar, incoming: Path, folder: Path) -> None:
    digest = hashlib.sha256(incoming.read_bytes()).hexdigest()
    if digest != jar.sha256:
        raise SetupError(
            f"the fetched {jar.file} is not the pinned one and was thrown away",
            where=f"SHA-256 {digest}, expected {jar.sha256}",
            way_out="find out who serves another file under this name; nothing of it was used",
        )
    with incoming.open("rb") as file:
        os.fsync(file.fileno())
    incoming.rename(folder / jar.file)


def _proxy_options() -> list[str]:
    """Java does not read the proxy variables that all other programs read."""
    options: list[str] = []
    for scheme in ("http", "https"):
        text = os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY") or ""
        proxy = urllib.parse.urlsplit(text if "://" in text else f"//{text}")
        if proxy.hostname:
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
    return options


def _spark_jars() -> Path:
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise SetupError(
            "Spark is not installed",
            where="Python package pyspark",
            way_out="install slotlake anew; in a checkout, start it by ./slotlake, which installs Spark",
        )
    return Path(package.origin).parent / "jars"
