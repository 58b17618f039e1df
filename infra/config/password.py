"""A password that a command prints, for logins that expire, as the tokens of a cloud's roles.

The command is run for each new connection to the source (`decoder.server.short_lived` asks for it).
Invariant: what it prints becomes a password and nothing else; no message, file or other process has it.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from slotlake.decoder.errors import PipelineFileError, SourceUnavailableError
from slotlake.decoder.server.short_lived import register

if TYPE_CHECKING:
    from slotlake.infra.config.sections import PasswordSection

SECONDS_MAX = 30.0


def with_password(dsn: str, section: PasswordSection | None, file: Path) -> str:
    """Return the connection string; from now on its sessions get the command's password, if there is one.

    Args:
        file: the pipeline file; the command runs in its folder.

    Raises:
        PipelineFileError: the connection string has a password too.
    """
    if section is None:
        return dsn
    from psycopg import ProgrammingError  # not where Airflow reads DAG files
    from psycopg.conninfo import conninfo_to_dict

    where = f"{file.name}, source.password.command"
    with suppress(ProgrammingError):  # who connects says that it cannot be read
        if conninfo_to_dict(dsn).get("password"):
            raise PipelineFileError(
                "source.dsn has a password, and source.password has a command that prints one",
                where=where,
                way_out="take the password out of source.dsn, or remove source.password",
            )
    register(dsn, lambda: _printed(section.command, file.parent, where))
    return dsn


def _printed(command: tuple[str, ...], folder: Path, where: str) -> str:
    """Run the command; return what it prints, without the white space around it.

    Raises:
        PipelineFileError: there is no such program.
        SourceUnavailableError: it gives no password now.
    """
    try:
        # A session of its own: Ctrl-C is for slotlake, which ends the batch at hand, and needs connections.
        ended = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS_MAX,
            check=False,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it cannot be a command"
        raise PipelineFileError(
            f"the command for the password cannot be run: {command[0]}: {reason}",
            where=where,
            way_out="give the path of an installed program; a name alone is looked for in PATH",
        ) from None
    except subprocess.TimeoutExpired:
        raise _no_password(command, f"has not ended within {SECONDS_MAX:g} s", where) from None
    if ended.returncode:
        raise _no_password(command, f"failed (exit code {ended.returncode})", where)
    password = ended.stdout.decode(errors="replace").strip()
    if not password:
        raise _no_password(command, "printed nothing", where)
    if len(password.splitlines()) > 1 or not {"\0", "\N{REPLACEMENT CHARACTER}"}.isdisjoint(password):
        raise _no_password(command, "printed more than one line of text", where)
    return password


def _no_password(command: tuple[str, ...], what: str, where: str) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"the command for the password, {command[0]}, {what}",
        where=where,
        way_out="run it by hand, as the user and with the variables of slotlake: it must print the password "
        f"and nothing else, within {SECONDS_MAX:g} s (what it printed is not shown)",
    )
