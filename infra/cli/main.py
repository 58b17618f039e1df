"""The `slotlake` command: arguments in, one report out, every error as one clear message.

Exit codes are those of decoder/errors.py, listed in docs/errors.md; 1 means "verified, and not
equal".  Heavy parts (Spark, numba, Great Expectations) are imported by the command that needs them,
so that help and mistakes answer at once.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.exceptions import TyperException

from slotlake import VERSION
from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.cli import care as cli_care
from slotlake.infra.cli import look as cli_look
from slotlake.infra.cli import work as cli_work
from slotlake.infra.cli.extras import require
from slotlake.infra.cli.options import DEVELOP, START
from slotlake.infra.launch.folders import CHECKOUT

INTERRUPTED, BROKEN_PIPE, DEFECT = 130, 141, 70

app = typer.Typer(
    name="slotlake",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="""PostgreSQL's committed changes in an Apache Iceberg lake: in commit order, exactly once,
    provably equal to the source.

    New here?  [bold]slotlake demo[/bold] runs everything on this machine, on real parts.

    The usual order:  write a pipeline file (docs/pipeline-file.md), then [bold]init[/bold] once,
    [bold]sync[/bold] as often as you like (or let Airflow do it), [bold]verify[/bold] whenever you
    want proof, and [bold]query[/bold] to look at the tables.""",
    epilog=f"The pages that are named docs/… lie in {escape(str(CHECKOUT / 'docs'))}",
)


def _version(asked: bool) -> None:
    if not asked:
        return
    typer.echo(f"slotlake {VERSION}")
    raise typer.Exit


@app.callback()
def begin(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Which version this is.")
    ] = False,
) -> None:
    """What is asked of no command."""


@app.command(rich_help_panel=START)
def demo(
    scale: Annotated[int, typer.Option(help="pgbench scale; 10 is 1 M accounts.")] = 10,
    transactions: Annotated[int, typer.Option(help="pgbench transactions while syncing.")] = 20_000,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End a demo left running by --keep.")] = False,
    folder: Annotated[Path | None, typer.Option("--dir", help="Where the demo lives.")] = None,
) -> None:
    """The whole chain on this machine: PostgreSQL, Airflow, Spark, Iceberg, live writes, verified."""
    require("demo")
    from slotlake.infra.demo.demo import run_demo, stop_demo

    if stop:
        raise typer.Exit(stop_demo(folder))
    raise typer.Exit(run_demo(scale=scale, transactions=transactions, keep=keep, folder=folder))


develop = typer.Typer()


@develop.command(rich_help_panel=DEVELOP)
def bench(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME…]")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures here.")] = None,
) -> None:
    """Paired timings against a peer or a limit, in one run, as ratios."""
    require("bench")
    from slotlake.bench import run
    from slotlake.infra.cli import output

    with output.progress(silent=False) as progress:
        raise typer.Exit(run(names or [], json_file, progress))


@develop.command(rich_help_panel=DEVELOP)
def test() -> None:
    r"""Run the tests (by the launcher: ./slotlake test \[pytest arguments]).

    Without a path all tests run, in two processes. Options and paths go to pytest.
    All of pytest's options: [bold]./slotlake test tests --help[/bold].
    """
    raise typer.Exit(_only_by_launcher("test"))


@develop.command(rich_help_panel=DEVELOP)
def check() -> None:
    """Format, lint, types, import rules and the fast tests (by the launcher: ./slotlake check)."""
    raise typer.Exit(_only_by_launcher("check"))


for commands in (cli_work.commands, cli_care.commands, cli_look.commands, develop):  # the help's order
    app.add_typer(commands)


def _usage_error(error: Any) -> int:
    message = error.format_message()
    if not message:
        return 0 if type(error).__name__ == "NoArgsIsHelpError" else 2
    command = error.ctx.command_path if getattr(error, "ctx", None) else "slotlake"
    sys.stderr.write(f"slotlake: {message}\n  what to do: see {command} --help\n")
    return 2


def _only_by_launcher(name: str) -> int:
    sys.stderr.write(f"slotlake: `{name}` is run by the launcher: ./slotlake {name}\n")
    return 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code. A user's mistake never ends in a traceback."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has seen enough. What is left of it would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code


def _run(arguments: list[str] | None) -> int:
    try:
        outcome = app(args=arguments, standalone_mode=False, prog_name="slotlake")
    except SlotlakeError as error:
        if isinstance(error.__cause__, BrokenPipeError):  # a consumer's own
            raise error.__cause__ from None
        return _say(str(error), error.exit_code)
    except SystemExit as ended:  # typer ends so when a pipe is closed
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        raise
    except TyperException as error:
        return _usage_error(error)
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted; running the same command again is safe", INTERRUPTED)
    except BrokenPipeError:
        raise
    except Exception:  # noqa: BLE001 - the last resort of the command
        traceback.print_exc()
        return _say("this is a defect of slotlake itself; nothing was confirmed to the server", DEFECT)
    return outcome if isinstance(outcome, int) else 0


def _say(message: str, exit_code: int) -> int:
    sys.stderr.write(f"slotlake: {message}\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
