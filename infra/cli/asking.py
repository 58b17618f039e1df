"""Questions of a command: what is said if the input ends before the answer.

Invariant: a question without an answer is an error that says what was not done, and which option answers.
Ctrl-C is no such error, nor is the answer "no", after which a command says what was not done, and ends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from slotlake.decoder.errors import PipelineFileError


@contextmanager
def asking(command: str, *, unchanged: str, way_out: str, on_stderr: bool = False) -> Iterator[None]:
    """Ask within, with `typer.confirm` or `typer.prompt`.

    Args:
        command: its name, as ``drop``.
        unchanged: what was not done, as ``nothing was dropped``.
        way_out: which options answer.
        on_stderr: where the question is.

    Raises:
        PipelineFileError: the input has ended, as at Ctrl-D or of ``</dev/null``.
    """
    ended = PipelineFileError(
        f"{unchanged}: the input ended before the question was answered",
        where=f"slotlake {command}",
        way_out=f"{way_out} (slotlake {command} --help)",
    )
    if sys.stdin is None:  # closed before Python began
        raise ended
    try:
        yield
    except typer.Abort as error:
        if not isinstance(error.__context__, EOFError):  # Ctrl-C
            raise
        typer.echo(err=on_stderr)  # the question has no end of line
        raise ended from error


def require_yes(command: str, question: str, *, unchanged: str) -> None:
    """Ask on standard error, and end the command (exit code 1) if the answer is "no".

    Args:
        command: its name, as ``drop``.
        unchanged: what was not done, as ``nothing was dropped``.

    Raises:
        PipelineFileError: the input has ended.
    """
    with asking(command, unchanged=unchanged, way_out="--yes answers the question", on_stderr=True):
        agreed = typer.confirm(question, err=True)
    if not agreed:
        typer.echo(unchanged, err=True)
        raise typer.Exit(1)


def is_terminal() -> bool:
    """Return whether somebody can be asked."""
    return sys.stdin is not None and sys.stdin.isatty()
