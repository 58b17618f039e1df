"""The `slotlake` command: arguments in, one report out, every error as one clear message.

decoder/errors.py defines the exit codes, and docs/errors.md lists them; 1 means "verified, and not
equal".  Each command imports the heavy parts that it needs (Spark, numba, Great Expectations), so that
`--help` and wrong arguments are answered at once.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.exceptions import TyperException

from slotlake import VERSION
from slotlake.bench import BENCHES
from slotlake.bench import run as run_benchmarks
from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.cli import care as cli_care
from slotlake.infra.cli import look as cli_look
from slotlake.infra.cli import new as cli_new
from slotlake.infra.cli import pages as cli_pages
from slotlake.infra.cli import work as cli_work
from slotlake.infra.cli.extras import require
from slotlake.infra.cli.interrupts import INTERRUPTED, InterruptedHereError, Interrupts, handled_here
from slotlake.infra.cli.options import DEVELOP, START
from slotlake.infra.launch.folders import CHECKOUT
from slotlake.infra.state.json_log import is_json, log_as_json

BROKEN_PIPE, DEFECT = 141, 70

app = typer.Typer(
    name="slotlake",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="""slotlake copies the committed changes of PostgreSQL to an Apache Iceberg lake: in commit order,
    each change exactly once. [bold]verify[/bold] proves that the lake is equal to the source.

    Are you new?  [bold]slotlake demo[/bold] runs everything on this machine, with real servers.

    The usual order:  [bold]slotlake new[/bold] writes a pipeline file for your database.
    Run [bold]init[/bold] once. Run [bold]sync[/bold] as often as you like, or let Airflow run it.
    Run [bold]verify[/bold] when you want a proof, and [bold]query[/bold] to read the tables.""",
    epilog=f"The texts name pages as docs/…: these pages are in {escape(str(CHECKOUT / 'docs'))}",
)


class LogFormat(StrEnum):
    """How the log on standard error is written."""

    text = "text"
    json = "json"


def _version(asked: bool) -> None:
    if not asked:
        return
    typer.echo(f"slotlake {VERSION}")
    raise typer.Exit


@app.callback()
def begin(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    log_format: Annotated[
        LogFormat, typer.Option(help="What standard error gets: text for people, or JSON lines for programs.")
    ] = LogFormat.text,
) -> None:
    """Accept the options that stand before a command."""
    if log_format is LogFormat.json:
        log_as_json()


@app.command(rich_help_panel=START)
def demo(
    scale: Annotated[int, typer.Option(help="Scale factor of pgbench; 10 gives 1,000,000 accounts.")] = 10,
    transactions: Annotated[
        int, typer.Option(help="Number of transactions that pgbench writes while the syncs run.")
    ] = 20_000,
    keep: Annotated[bool, typer.Option("--keep", help="Do not stop the servers at the end.")] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop the servers of a demo that was started with --keep.")
    ] = False,
    s3: Annotated[
        bool, typer.Option("--s3", help="Keep the lake in an S3 server, which the demo starts too.")
    ] = False,
    folder: Annotated[Path | None, typer.Option("--dir", help="The folder of the demo.")] = None,
) -> None:
    """Run PostgreSQL, Airflow, Spark and Iceberg on this machine, write to PostgreSQL, verify the lake."""
    require("demo")
    from slotlake.infra.demo.demo import run_demo, stop_demo

    if stop:
        raise typer.Exit(stop_demo(folder))
    with handled_here():
        raise typer.Exit(run_demo(scale=scale, transactions=transactions, keep=keep, folder=folder, s3=s3))


develop = typer.Typer()


@develop.command(rich_help_panel=DEVELOP)
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME…]",
            help=f"Those to run (docs/benchmarks.md); else all: {', '.join(BENCHES)}.",
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file, as JSON.")
    ] = None,
    tables: Annotated[
        str, typer.Option(help="many_tables: how many tables the pipelines have, as 10,100,1000.")
    ] = "",
    catalog: Annotated[
        str, typer.Option(help="many_tables: sqlite, postgresql, or the address of a REST catalog.")
    ] = "",
) -> None:
    """Compare slotlake's speed with another program or with a limit of this machine; print the ratios."""
    require("bench")
    from slotlake.infra.cli.progress_display import progress_shown

    with progress_shown(quiet=False) as progress:
        raise typer.Exit(run_benchmarks(names or [], json_file, progress, tables=tables, catalog=catalog))


@develop.command(rich_help_panel=DEVELOP)
def test() -> None:
    r"""Run the tests. Use the launcher of a checkout: ./slotlake test \[pytest arguments].

    Without a path, all tests run, in two processes. slotlake passes options and paths to pytest.
    This command lists all options of pytest: [bold]./slotlake test tests --help[/bold].
    """
    raise typer.Exit(_only_by_launcher("test"))


@develop.command(rich_help_panel=DEVELOP)
def check() -> None:
    """Check format, lint, types and imports, and run the fast tests. Use the launcher: ./slotlake check."""
    raise typer.Exit(_only_by_launcher("check"))


for commands in (
    cli_new.commands,
    cli_work.commands,
    cli_care.commands,
    cli_look.commands,
    cli_pages.commands,
    develop,
):  # the help's order
    app.add_typer(commands)


def _usage_error(error: Any) -> int:
    message = error.format_message()
    if not message:
        return 0 if type(error).__name__ == "NoArgsIsHelpError" else 2
    command = error.ctx.command_path if getattr(error, "ctx", None) else "slotlake"
    sys.stderr.write(f"slotlake: {message}\n  what to do: read {command} --help\n")
    return 2


def _only_by_launcher(name: str) -> int:
    sys.stderr.write(
        f"slotlake: only the launcher in a checkout can run `{name}`\n  what to do: ./slotlake {name}\n"
    )
    return 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code. A mistake of the user never causes a traceback."""
    try:
        code = _interruptible(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe. Without this, Python would try to write the rest when it ends, and fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code


def _interruptible(arguments: list[str] | None) -> int:
    def report() -> None:
        _report_error("interrupted; you can safely run the same command again", INTERRUPTED)

    with Interrupts(report) as interrupts:
        try:
            code = _run(arguments)
            # Typer makes an exit code of KeyboardInterrupt.
            return interrupts.end() if interrupts.seen and code == INTERRUPTED else code
        except (KeyboardInterrupt, InterruptedHereError, typer.Abort):
            return interrupts.end()
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - the last resort of the command
            return interrupts.end() if interrupts.seen else _failed(error)


def _run(arguments: list[str] | None) -> int:
    try:
        outcome = app(args=arguments, standalone_mode=False, prog_name="slotlake")
    except SystemExit as ended:  # typer ends so when a pipe is closed
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        raise
    return outcome if isinstance(outcome, int) else 0


def _failed(error: Exception) -> int:
    """Report what ended the command."""
    if isinstance(error, SlotlakeError):
        if isinstance(error.__cause__, BrokenPipeError):  # a consumer's own
            raise error.__cause__ from None
        return _report_error(str(error), error.exit_code)
    if isinstance(error, TyperException):
        return _usage_error(error)
    traceback.print_exception(error)
    return _report_error("this is a defect of slotlake; it confirmed nothing to the server", DEFECT)


def _report_error(message: str, exit_code: int) -> int:
    if is_json():
        logging.getLogger("slotlake").error(message, extra={"fields": {"exit_code": exit_code}})
        return exit_code
    sys.stderr.write(f"slotlake: {message}\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
