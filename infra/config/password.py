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
    register(dsn, lambda: printed(section.command, file.parent, where))
    return dsn


def printed(command: tuple[str, ...], folder: Path, where: str, what: str = "password") -> str:
    """Run the command; return the one line that it prints, without the white space around it.

    Args:
        command: the program and its arguments.
        folder: of the pipeline file, where it runs.
        where: the key of the pipeline file, for errors.
        what: it prints, for errors.

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
            f"the command for the {what} cannot be run: {command[0]}: {reason}",
            where=where,
            way_out="give the path of an installed program; a name alone is looked for in PATH",
        ) from None
    except subprocess.TimeoutExpired:
        raise _nothing(what, command, f"has not ended within {SECONDS_MAX:g} s", where) from None
    if ended.returncode:
        raise _nothing(what, command, f"failed (exit code {ended.returncode})", where)
    text = ended.stdout.decode(errors="replace").strip()
    if not text:
        raise _nothing(what, command, "printed nothing", where)
    if len(text.splitlines()) > 1 or not {"\0", "\N{REPLACEMENT CHARACTER}"}.isdisjoint(text):
        raise _nothing(what, command, "printed more than one line of text", where)
    return text


def _nothing(what: str, command: tuple[str, ...], happened: str, where: str) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"the command for the {what}, {command[0]}, {happened}",
        where=where,
        way_out=f"run it by hand, as the user and with the variables of slotlake: it must print the {what} "
        f"and nothing else, within {SECONDS_MAX:g} s (what it printed is not shown)",
    )
