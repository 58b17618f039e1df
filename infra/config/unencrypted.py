"""A warning, given once, about connections to other machines for which nobody chose an encryption.

The default of libpq and pgjdbc is ``sslmode=prefer``: encrypted if the server offers it, else unencrypted
without a warning, and never with a check of the server's identity.  If the user made a choice, there is no
warning.
"""

from __future__ import annotations

import ipaddress
import logging
import os
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from slotlake.decoder.server.source import redact
from slotlake.infra.config.pipeline_file import PipelineFile

_log = logging.getLogger(__name__)
_WARNED_FILE = "told-in-the-clear"


def warn_once(file: PipelineFile) -> None:
    """Write the warnings to the log that were not in it before."""
    warnings = unencrypted_connections(file)
    warned_file = file.state_dir / _WARNED_FILE
    earlier = warned_file.read_text().splitlines() if warned_file.exists() else []
    for warning in warnings:
        if warning not in earlier:
            _log.warning("warning: %s", warning)
    if set(warnings) - set(earlier):
        file.state_dir.mkdir(parents=True, exist_ok=True)
        warned_file.write_text("".join(f"{line}\n" for line in warnings))


def unencrypted_connections(file: PipelineFile) -> list[str]:
    """Return a warning for each connection that may be unencrypted without anyone's choice."""
    warnings = []
    if _is_open(file.dsn()):
        warnings.append(_words(f"source.dsn ({redact(file.dsn())})"))
    uri = file.lake_uri()
    parts = urlsplit(uri)
    if parts.scheme == "http" and _is_elsewhere(parts.hostname or ""):
        place = f"lake.uri (http://{parts.netloc.rpartition('@')[2]})"
        warnings.append(f"{place} is on another machine, and the connection has no encryption: use https://")
    if parts.scheme == "thrift" and any(
        _is_elsewhere(urlsplit(each).hostname or "") for each in uri.split(",")
    ):
        warnings.append(
            f"lake.uri ({uri}) is on another machine, and the connection has no encryption. Let it cross "
            "only networks that you trust"
        )
    for key, address in (("lake.uri", uri), ("lake.staging", file.lake_staging())):
        if address.startswith("postgresql") and (dsn := _libpq(address)) and _is_open(dsn):
            warnings.append(_words(f"{key} ({redact(dsn)})"))
    return warnings


def _words(place: str) -> str:
    return (
        f"{place} is on another machine and has no sslmode: rows and password may cross the network without "
        "encryption, and nothing checks the server's identity. Add sslmode=verify-full and sslrootcert=… "
        "(with sslmode=prefer the connection stays as it is, without this warning)"
    )


def _libpq(uri: str) -> str:
    try:
        url = make_url(uri)
    except SQLAlchemyError:
        return ""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def _is_open(dsn: str) -> bool:
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error:
        return False
    chosen = parts.get("sslmode") or parts.get("service") or parts.get("sslrootcert")
    if chosen or os.environ.get("PGSSLMODE") or parts.get("gssencmode") == "require":
        return False
    hosts = str(parts.get("hostaddr") or parts.get("host") or os.environ.get("PGHOST", ""))
    return any(_is_elsewhere(host) for host in hosts.split(","))


def _is_elsewhere(host: str) -> bool:
    if not host or host.startswith(("/", "@")) or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True
