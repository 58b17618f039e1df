"""What of a pipeline file must be seen nowhere: passwords, tokens, and what holds them.

Whoever hands text on, as Airflow does with every line that any library logs, is told these beforehand.
A command line is read by everybody on the machine, so a password does not stay there.
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
from slotlake.infra.config.pipeline_file import PipelineFile

_SECRET_KEY = re.compile(
    "password|passphrase|token|secret|credential|authorization|header|access.?key|api.?key", re.IGNORECASE
)
_HIDDEN = "SLOTLAKE_DECODE_DSN"
_LENGTH_MIN = 3  # hiding each "a" would hide the rest of the log too
_VARIABLES = ("SPARK_CONNECT_AUTHENTICATE_TOKEN", "PGPASSWORD")


def secrets_of(file: PipelineFile) -> set[str]:
    """Every secret text of a pipeline, as it stands in the file and as it may come back written otherwise.

    What cannot be resolved (a variable that is not set) is left out: the step that needs it says so.
    """
    found = {os.environ.get(name, "") for name in _VARIABLES} | {_resolved(file.dsn)}
    for told in (file.dsn, file.lake_uri, file.remote):
        found.update(_of_address(_resolved(told)))
    with suppress(PipelineFileError):
        for name, value in file.lake_rest().items():
            if _SECRET_KEY.search(name):
                found.update((value, value.partition(":")[2], value.rpartition(" ")[2]))
    forms = {form for secret in found for form in (secret, quote(secret, safe=""), quote_plus(secret))}
    return {form for form in forms if len(form) >= _LENGTH_MIN}


def _resolved(told: Callable[[], str | None]) -> str:
    with suppress(PipelineFileError):
        return told() or ""
    return ""


def _of_address(address: str) -> Iterator[str]:
    """The address itself, if it holds a secret, and the secrets in it."""
    with suppress(ValueError):
        parts = urlsplit(address)
        parameters = [*parse_qsl(parts.query), *(p.partition("=")[::2] for p in parts.path.split(";")[1:])]
        held = [unquote(parts.password or ""), *(v for name, v in parameters if _SECRET_KEY.search(name))]
        if any(held):
            yield address
            yield from held
    with suppress(ProgrammingError):
        given = conninfo_to_dict(address)
        held = [str(value) for name, value in given.items() if value and name in ("password", "sslpassword")]
        if held:
            yield address
            yield from held


def run_without_password(dsn: str) -> None:
    """Begin this command again if its arguments hold a password: whoever is on the machine can read them.

    The connection string goes into the environment, which its user alone can read.  It stood in the list of
    processes for a moment; that is said.
    """
    if not any(dsn in argument for argument in sys.orig_argv) or not any(_of_address(dsn)):
        return
    sys.stderr.write(
        "slotlake: --dsn holds a password, which other users of this machine could read for a moment\n"
        "  what to do: give --dsn env:NAME, or leave the password to PGPASSWORD or ~/.pgpass\n"
    )
    sys.stderr.flush()
    arguments = [argument.replace(dsn, f"env:{_HIDDEN}") for argument in sys.orig_argv]
    os.execve(sys.executable, arguments, {**os.environ, _HIDDEN: dsn})  # noqa: S606
