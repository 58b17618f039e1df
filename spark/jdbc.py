"""A PostgreSQL catalog for Java: what libpq is told about the connection, in the words of pgjdbc.

pyiceberg reaches the catalog through libpq, Spark through Java's driver; both must come to the same server
with the same care.  Each of libpq's parameters, given in ``lake.uri`` or by libpq's environment variables,
is carried over, or has no meaning for Java, or is refused by name: none is dropped.

Java reads a client's key as PKCS#12 or PKCS#8 in DER, libpq as PEM; so both are handed to it as a
PKCS#12 file of this process (mode 0600, encrypted with a password that only the session knows).
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)
from psycopg.pq import Conninfo
from sqlalchemy.engine import URL

from slotlake.decoder.errors import LakeError
from slotlake.spark.limits import CONNECT_SECONDS, SILENT_SECONDS

_SSLMODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SAME_NAME = {
    "options": "options",
    "application_name": "ApplicationName",
    "channel_binding": "channelBinding",
    "gssencmode": "gssEncMode",
    "krbsrvname": "kerberosServerName",
    "sslnegotiation": "sslNegotiation",
}
_SESSIONS = {
    "any": "any",
    "read-write": "primary",
    "primary": "primary",
    "read-only": "secondary",
    "standby": "secondary",
    "prefer-standby": "preferSecondary",
}
# Nothing of them is lost: Java's driver always speaks UTF-8, has its own name to fall back to, and notices a
# dead connection by our own limit.
_WITHOUT_MEANING = frozenset(
    {"client_encoding", "fallback_application_name", "keepalives_idle", "keepalives_interval"}
    | {"keepalives_count", "tcp_user_timeout"}
)
# What they say is what Java's driver does anyway.
_AS_JAVA_DOES = {
    "sslcompression": {"0"},
    "sslsni": {"1"},
    "sslcertmode": {"allow"},
    "ssl_min_protocol_version": {"TLSv1", "TLSv1.1", "TLSv1.2"},
    "ssl_max_protocol_version": {"TLSv1.3"},
    "min_protocol_version": {"3.0"},
    "max_protocol_version": {"3.0"},
    "load_balance_hosts": {"disable"},
    "requirepeer": set[str](),
}
_PLACES = frozenset({"host", "hostaddr", "port", "dbname", "user", "password", "passfile", "connect_timeout"})
_TLS = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword"})


def jdbc_properties(url: URL) -> dict[str, str]:
    """Properties of Iceberg's JdbcCatalog for a PostgreSQL catalog.

    Raises:
        LakeError: the address has something that Java's driver cannot do, which is named.
    """
    parameters = _libpq_parameters(url)
    properties = {"tcpKeepAlive": "true", "socketTimeout": str(SILENT_SECONDS)}
    properties["connectTimeout"] = parameters.get("connect_timeout") or str(CONNECT_SECONDS)
    for name in ("user", "password"):
        properties |= {name: parameters[name]} if parameters.get(name) else {}
    for name, value in parameters.items():
        properties |= _carried(name, value, url)
    properties |= _tls(parameters, url)
    return {"uri": _address(parameters, url)} | {f"jdbc.{name}": value for name, value in properties.items()}


def _libpq_parameters(url: URL) -> dict[str, str]:
    """What libpq would go by: the address, then its environment variables; empty ones are not given."""
    _, arguments = url.get_dialect()().create_connect_args(url)
    environment = {
        option.keyword.decode(): os.environ.get(option.envvar.decode(), "")
        for option in Conninfo.get_defaults()
        if option.envvar
    }
    environment.pop("passfile", None)  # Java's driver reads that variable itself
    parameters = environment | {name: str(value) for name, value in arguments.items()}
    return {name: value for name, value in parameters.items() if value}


def _carried(name: str, value: str, url: URL) -> Mapping[str, str]:
    if name in _PLACES - {"passfile"} or name in _TLS or name in _WITHOUT_MEANING:
        return {}
    if name in _SAME_NAME:
        return {_SAME_NAME[name]: value}
    if name == "keepalives":
        return {"tcpKeepAlive": "false" if value == "0" else "true"}
    if name == "target_session_attrs" and value in _SESSIONS:
        return {"targetServerType": _SESSIONS[value]}
    if name == "load_balance_hosts" and value == "random":
        return {"loadBalanceHosts": "true"}
    if value in _AS_JAVA_DOES.get(name, ()):
        return {}
    raise _refused(url, name, "leave it out of lake.uri (and of libpq's environment variables)")


def _address(parameters: Mapping[str, str], url: URL) -> str:
    hosts = parameters.get("host") or parameters.get("hostaddr") or "localhost"
    if "hostaddr" in parameters and parameters.get("host") not in (None, parameters["hostaddr"]):
        raise _refused(url, "hostaddr", "give host alone")
    ports = parameters.get("port", "5432").split(",")
    pairs = []
    for i, host in enumerate(hosts.split(",")):
        if host.startswith(("/", "@")):
            raise LakeError(
                "Java cannot reach a PostgreSQL catalog over a socket file",
                where=_without_secrets(url),
                way_out="name a host, as 127.0.0.1",
            )
        address = f"[{host}]" if ":" in host else host
        pairs.append(f"{address}:{ports[i] if len(ports) > 1 else ports[0]}")
    database = parameters.get("dbname") or parameters.get("user", "")
    return f"jdbc:postgresql://{','.join(pairs)}/{quote(database, safe='')}"


# -- TLS ----------------------------------------------------------------------------------------------------


def _tls(parameters: Mapping[str, str], url: URL) -> dict[str, str]:
    root = parameters.get("sslrootcert", "")
    mode = parameters.get("sslmode", "verify-full" if root == "system" else "prefer")
    if mode not in _SSLMODES:
        raise _refused(url, f"sslmode={mode}", f"one of {', '.join(_SSLMODES)}")
    properties = {}
    if root == "system":
        if mode != "verify-full":
            raise _refused(url, f"sslmode={mode} with sslrootcert=system", "sslmode=verify-full")
        properties["sslfactory"] = "org.postgresql.ssl.DefaultJavaSSLFactory"
    elif root:
        properties["sslrootcert"] = _readable(root, "sslrootcert", url)
        mode = "verify-ca" if mode == "require" else mode  # as libpq has it where a root is given
    if mode != "disable":
        properties |= _client(parameters, url, with_system="sslfactory" in properties)
    # As libpq's own default, said only where something was asked for.
    return {"sslmode": mode, **properties} if properties or "sslmode" in parameters else {}


def _client(parameters: Mapping[str, str], url: URL, *, with_system: bool) -> dict[str, str]:
    """The client's certificate and key, if libpq would show one."""
    folder = Path.home() / ".postgresql"
    certificate = parameters.get("sslcert") or _existing_path(folder / "postgresql.crt")
    key = parameters.get("sslkey") or _existing_path(folder / "postgresql.key")
    if not certificate or not key:
        if "sslcert" in parameters or "sslkey" in parameters:
            lacking = "sslkey" if certificate else "sslcert"
            raise _refused(url, f"a client's certificate without {lacking}", f"give {lacking} as well")
        return {}
    if with_system:
        raise _refused(url, "sslcert with sslrootcert=system", "name the root's file in sslrootcert")
    if re.match(r"\w{2,}:", key):
        raise _refused(url, "a key of an OpenSSL engine (sslkey)", "give the key as a file")
    places = (_readable(certificate, "sslcert", url), _readable(key, "sslkey", url))
    try:
        path, password = _pkcs12(
            *places, parameters.get("sslpassword", ""), Path(places[1]).stat().st_mtime_ns
        )
    except (ValueError, TypeError) as error:
        raise LakeError(
            f"the catalog's client certificate or key cannot be used: {type(error).__name__}",
            where=f"sslcert {places[0]}, sslkey {places[1]}",
            way_out="both must be PEM and belong together; an encrypted key needs sslpassword",
        ) from None
    return {"sslkey": path, "sslpassword": password}


@cache  # a file for each is enough, of all sessions
def _pkcs12(certificate: str, key: str, sslpassword: str, _changed: int) -> tuple[str, str]:
    """Both in one file that Java reads, and the password that it is encrypted with."""
    chain = x509.load_pem_x509_certificates(Path(certificate).read_bytes())
    private = load_pem_private_key(Path(key).read_bytes(), _password(Path(key), sslpassword))
    if private.public_key() != chain[0].public_key():
        raise ValueError("they do not belong together")
    password = secrets.token_hex(24)
    # pgjdbc looks for this name.
    content = pkcs12.serialize_key_and_certificates(
        b"user",
        private,  # type: ignore[arg-type]
        chain[0],
        chain[1:],
        BestAvailableEncryption(password.encode()),
    )
    path = _folder() / f"{secrets.token_hex(8)}.p12"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    return str(path), password


def _password(key: Path, password: str) -> bytes | None:
    """libpq passes over a password that the key does not need."""
    return password.encode() if password and b"ENCRYPTED" in key.read_bytes() else None


@cache
def _folder() -> Path:
    path = Path(tempfile.mkdtemp(prefix="slotlake-tls-"))  # mode 0700
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _existing_path(path: Path) -> str:
    return str(path) if path.exists() else ""


def _readable(place: str, name: str, url: URL) -> str:
    path = Path(place).expanduser().absolute()
    try:
        path.open("rb").close()
    except OSError as error:
        raise LakeError(
            f"{name} cannot be read: {error.strerror}",
            where=f"{path}, for {_without_secrets(url)}",
            way_out=f"give {name} as a file that this user may read",
        ) from None
    return str(path)


def _refused(url: URL, what: str, way_out: str) -> LakeError:
    return LakeError(
        f"Spark cannot connect to the catalog: Java's driver does not support {what}",
        where=_without_secrets(url),
        way_out=way_out,
    )


def _without_secrets(url: URL) -> str:
    return URL.create(url.drivername, url.username, None, url.host, url.port, url.database).render_as_string()
