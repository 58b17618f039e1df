"""Told once: which connection to another machine nobody said how to encrypt.

libpq's and pgjdbc's default is ``sslmode=prefer``: encrypted if the server offers it, else in the clear and
without a word, and never sure who answers.  A choice that was made, whatever it is, is not questioned.
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
_TOLD = "told-in-the-clear"


def tell_once(file: PipelineFile) -> None:
    """Warn in the log, unless this pipeline's warning was given before."""
    found = in_the_clear(file)
    mark = file.state_dir / _TOLD
    told = mark.read_text().splitlines() if mark.exists() else []
    for warning in found:
        if warning not in told:
            _log.warning("warning: %s", warning)
    if set(found) - set(told):
        file.state_dir.mkdir(parents=True, exist_ok=True)
        mark.write_text("".join(f"{line}\n" for line in found))


def in_the_clear(file: PipelineFile) -> list[str]:
    """The connections of a pipeline that may be unencrypted though nobody chose that."""
    found = []
    if _is_open(file.dsn()):
        found.append(_words(f"source.dsn ({redact(file.dsn())})"))
    uri = file.lake_uri()
    parts = urlsplit(uri)
    if parts.scheme == "http" and _is_elsewhere(parts.hostname or ""):
        place = f"lake.uri (http://{parts.netloc.rpartition('@')[2]})"
        found.append(f"{place} is another machine, reached without encryption: use https://")
    elif parts.scheme.startswith("postgresql") and (dsn := _libpq(uri)) and _is_open(dsn):
        found.append(_words(f"lake.uri ({redact(dsn)})"))
    return found


def _words(place: str) -> str:
    return (
        f"{place} leads to another machine and says no sslmode: rows and password may cross the network in "
        "the clear, and nobody checks who answers. Add sslmode=verify-full and sslrootcert=… (sslmode=prefer "
        "leaves it so)"
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
