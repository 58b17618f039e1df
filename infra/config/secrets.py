"""The secrets of a pipeline file: passwords, tokens, and the texts that contain them.

Airflow passes on every line that a library logs, so it gets these secrets beforehand and masks them.
Every user of a machine can read command lines, so a password does not stay in one.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.config.pipeline_file import PipelineFile, resolve_secret

_SECRET_KEY = re.compile(
    "password|passphrase|token|secret|credential|authorization|header|access.?key|api.?key", re.IGNORECASE
)
_HIDDEN = "SLOTLAKE_DECODE_DSN"
_LENGTH_MIN = 3  # masking each "a" would make the log unreadable
_TOKEN_LENGTH_MIN = 8  # of a part of a receiver's address: a port or `api` is none
_VARIABLES = ("SPARK_CONNECT_AUTHENTICATE_TOKEN", "PGPASSWORD")


def secrets_of(file: PipelineFile) -> set[str]:
    """Return every secret text of a pipeline, as in the file and in URL encoding.

    Secrets that cannot be resolved (a variable that is not set) are left out: the step that needs them fails.
    """
    secrets = {os.environ.get(name, "") for name in _VARIABLES} | {_resolved(file.dsn)}
    for address_of in (file.dsn, file.lake_uri, file.lake_staging, file.remote):
        secrets.update(_of_address(_resolved(address_of)))
    with suppress(PipelineFileError):
        for name, value in file.lake_rest().items():
            if _SECRET_KEY.search(name):
                secrets.update((value, value.partition(":")[2], value.rpartition(" ")[2]))
    with suppress(PipelineFileError):
        storage = file.lake_storage()
        secrets.update(filter(None, (storage.access_key, storage.secret_key, storage.session_token)))
    with suppress(PipelineFileError):
        secrets.update(value for name, value in file.lake_glue().items() if _SECRET_KEY.search(name))
    for receiver in file.notify.to:
        if receiver.url is not None:
            with suppress(PipelineFileError):
                secrets.update(_of_receiver(resolve_secret(receiver.url.get_secret_value(), "notify.to")))
    spellings = {
        spelling for secret in secrets for spelling in (secret, quote(secret, safe=""), quote_plus(secret))
    }
    return {spelling for spelling in spellings if len(spelling) >= _LENGTH_MIN}


def _resolved(address_of: Callable[[], str | None]) -> str:
    with suppress(PipelineFileError):
        return address_of() or ""
    return ""


def _of_address(address: str) -> Iterator[str]:
    """Yield the secrets in an address, and the address itself if it has some."""
    with suppress(ValueError):
        parts = urlsplit(address)
        parameters = [*parse_qsl(parts.query), *(p.partition("=")[::2] for p in parts.path.split(";")[1:])]
        secrets = [unquote(parts.password or ""), *(v for name, v in parameters if _SECRET_KEY.search(name))]
        if any(secrets):
            yield address
            yield from secrets
    with suppress(ProgrammingError):
        settings = conninfo_to_dict(address)
        secrets = [
            str(value) for name, value in settings.items() if value and name in ("password", "sslpassword")
        ]
        if secrets:
            yield address
            yield from secrets


def _of_receiver(address: str) -> Iterator[str]:
    """Yield the address of who is told, and the parts of it that may be tokens."""
    yield address
    rest = address.partition("://")[2]
    yield rest
    yield from (part for part in re.split("[/@:?&=,]", rest) if len(part) >= _TOKEN_LENGTH_MIN)


def has_password(dsn: str) -> bool:
    """Return whether a connection string holds a secret."""
    return any(_of_address(dsn))


def given_dsn(dsn: str) -> str:
    """Return the connection string of an argument, which `run_without_password` may hide."""
    run_without_password(dsn)
    return os.environ[_HIDDEN] if dsn == f"env:{_HIDDEN}" else dsn


def run_without_password(dsn: str) -> None:
    """Start this command again if its arguments hold a password, because all users of the machine see them.

    The new process gets the connection string in an environment variable, which only its user can read. The
    password was in the list of processes for a moment; a warning says so.
    """
    if not any(dsn in argument for argument in sys.orig_argv) or not has_password(dsn):
        return
    sys.stderr.write(
        "slotlake: --dsn holds a password; other users of this machine could read it for a moment\n"
        "  what to do: give --dsn env:NAME, or put the password into PGPASSWORD or ~/.pgpass\n"
    )
    sys.stderr.flush()
    arguments = [argument.replace(dsn, f"env:{_HIDDEN}") for argument in sys.orig_argv]
    os.execve(sys.executable, arguments, {**os.environ, _HIDDEN: dsn})  # noqa: S606
