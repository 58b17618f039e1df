"""The `slotlake` command: arguments in, one report out, every error as one clear message.

Exit codes are those of decoder/errors.py, listed in docs/errors.md; 1 means "verified, and not
equal".  Heavy parts (Spark, numba, Great Expectations) are imported by the command that needs them,
so that help and mistakes answer at once.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from decoder.errors import PipelineFileError, SlotlakeError
from infra import output

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
)

PipelineArgument = Annotated[Path, typer.Argument(metavar="PIPELINE.yaml", help="The pipeline file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document, for machines.")]
START = "Start here"
WORK = "Run a pipeline"
LOOK = "Look"
CARE = "Repair and remove"
DEVELOP = "Develop slotlake"
INTERRUPTED, BROKEN_PIPE, DEFECT = 130, 141, 70


def _open(path: Path) -> Any:
    from infra.pipeline import Pipeline

    return Pipeline.open(path)


@app.command(rich_help_panel=START)
def demo(
    scale: Annotated[int, typer.Option(help="pgbench scale; 10 is 1 M accounts.")] = 10,
    transactions: Annotated[int, typer.Option(help="pgbench transactions while syncing.")] = 20_000,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End a demo left running by --keep.")] = False,
    folder: Annotated[Path | None, typer.Option("--dir", help="Where the demo lives.")] = None,
) -> None:
    """The whole chain on this machine: PostgreSQL, Airflow, Spark, Iceberg, live writes, verified."""
    from infra.demo import run_demo, stop_demo

    if stop:
        raise typer.Exit(stop_demo(folder))
    raise typer.Exit(run_demo(scale=scale, transactions=transactions, keep=keep, folder=folder))


@app.command(rich_help_panel=WORK)
def init(
    pipeline: PipelineArgument,
    as_json: JsonOption = False,
    ddl_trigger: Annotated[
        bool, typer.Option("--ddl-trigger", help="Only install the optional event trigger (docs/schema.md).")
    ] = False,
    print_sql: Annotated[
        bool, typer.Option("--print-sql", help="Only print the SQL that installs it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Install it without asking.")] = False,
) -> None:
    """Make publication, slot and lake tables, and copy what the source holds now."""
    if ddl_trigger or print_sql:
        _trigger(pipeline, as_json, only_print=print_sql, yes=yes)
        return
    with _open(pipeline) as opened, output.progress(as_json) as progress:
        report = opened.init(progress=progress)
    output.show(report, as_json, output.init_text)


def _trigger(pipeline: Path, as_json: bool, *, only_print: bool, yes: bool) -> None:
    from infra.ddl_trigger import INSTALL

    typer.echo(INSTALL, err=as_json)
    if only_print:
        return
    with _open(pipeline) as opened:
        if not yes:
            typer.confirm(f"Install this in the source of pipeline {opened.name}?", abort=True)
        report = opened.install_trigger()
    output.show(report, as_json, output.trigger_text)


@app.command(rich_help_panel=WORK)
def sync(
    pipeline: PipelineArgument,
    as_json: JsonOption = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for another run to end.")] = 0.0,
) -> None:
    """One micro-batch: catch up with the source's WAL position now, apply, publish, confirm."""
    with _open(pipeline) as opened, output.progress(as_json) as progress:
        report = opened.sync(progress=progress, wait_seconds=wait)
    output.show(report, as_json, output.sync_text)


@app.command(rich_help_panel=WORK)
def pull(
    pipeline: PipelineArgument,
    as_json: JsonOption = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Stay connected, and give the pipeline's runs their batches.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the one that follows.")] = False,
) -> None:
    """Only the first step of sync: write the next change log batch; nothing is applied or confirmed.

    With --follow, one connection serves all later runs: transactions that stay open over many
    micro-batches are then sent and decoded once.
    """
    with _open(pipeline) as opened:
        if follow or stop:
            _follow(opened, stop)
            return
        with output.progress(as_json) as progress:
            report = opened.pull(progress=progress)
    output.show(report, as_json, output.pull_text)


def _follow(pipeline: Any, stop: bool) -> None:
    from infra import follow

    if stop:
        ended = follow.stop(pipeline)
        typer.echo("ended" if ended else f"no standing puller serves {pipeline.name!r}", err=True)
        return
    with follow.ended_by_signals():
        follow.follow(pipeline, lambda line: typer.echo(line, err=True))


@app.command(rich_help_panel=WORK)
def verify(
    pipeline: PipelineArgument,
    as_json: JsonOption = False,
    slot_timeout: Annotated[
        float, typer.Option(help="Seconds to wait for transactions that are open at the start.")
    ] = 60.0,
) -> None:
    """Compare lake and source at an exact LSN; exit code 1 and the differing keys if not equal."""
    with _open(pipeline) as opened, output.progress(as_json) as progress:
        report = opened.verify(progress=progress, slot_timeout_seconds=slot_timeout)
    output.show(report, as_json, output.verify_text)
    if not report.equal:
        raise typer.Exit(1)


@app.command(rich_help_panel=CARE)
def backfill(
    pipeline: PipelineArgument,
    table: Annotated[str, typer.Option(help="The table, as PostgreSQL writes it: public.orders.")],
    where: Annotated[str | None, typer.Option(help="Only these rows (not in this version).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Read one table again from the source, at an exact LSN, and replace it in the lake."""
    if where is not None:
        raise PipelineFileError(
            "--where is not supported by this version",
            where="slotlake backfill",
            way_out="leave it out: the whole table is copied again",
        )
    with _open(pipeline) as opened, output.progress(as_json) as progress:
        report = opened.backfill(table, progress=progress)
    output.show(report, as_json, output.backfill_text)


@app.command(rich_help_panel=CARE)
def replay(
    pipeline: PipelineArgument,
    into: Annotated[str, typer.Option(help="A namespace for the scratch tables.")],
    begin: Annotated[
        str | None, typer.Option("--from", help="An LSN or a time; the oldest kept point.")
    ] = None,
    end: Annotated[str, typer.Option("--to", help="An LSN, a time, or 'latest'.")] = "latest",
    transactions: Annotated[
        int | None, typer.Option(min=1, help="In batches of so many; else in those they were.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Apply archived batches once more, in a scratch namespace; the live tables are not touched."""
    with _open(pipeline) as opened, output.progress(as_json) as progress:
        report = opened.replay(into, start=begin, end=end, transactions=transactions, progress=progress)
    output.show(report, as_json, output.replay_text)


@app.command(rich_help_panel=CARE)
def maintain(
    pipeline: PipelineArgument,
    table: Annotated[
        str | None, typer.Option(help="Only this table, as PostgreSQL writes it: public.orders.")
    ] = None,
    as_json: JsonOption = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for another run to end.")] = 60.0,
) -> None:
    """Keep the lake's tables quick to read and small: compact, expire, remove what nothing needs."""
    with _open(pipeline) as opened, output.progress(as_json) as progress:
        report = opened.maintain(table, progress=progress, wait_seconds=wait)
    output.show(report, as_json, output.maintain_text)


@app.command(rich_help_panel=LOOK)
def status(
    pipeline: PipelineArgument,
    types: Annotated[bool, typer.Option("--types", help="What became of each column's type.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Lag, retained WAL, the slot's state, tables and the last consistent LSN."""
    with _open(pipeline) as opened:
        report = opened.types() if types else opened.status()
    output.show(report, as_json, output.types_text if types else output.status_text)


@app.command(rich_help_panel=LOOK)
def query(
    pipeline: PipelineArgument,
    sql: Annotated[str, typer.Argument(metavar='"SELECT …"', help="Spark SQL over the lake's tables.")],
    at: Annotated[
        str, typer.Option(help="An LSN, a time ('2024-05-01 12:00:00+00'; UTC without a zone), or 'latest'.")
    ] = "latest",
    as_json: JsonOption = False,
) -> None:
    """Query the lake; all tables are read at one position of the source."""
    with _open(pipeline) as opened:
        result = opened.query(sql, at=at)
    output.show_rows(result, as_json)


@app.command(rich_help_panel=LOOK)
def decode(  # noqa: PLR0913, PLR0917 - one argument an option
    dsn: Annotated[str | None, typer.Option(help="postgresql://… or env:NAME")] = None,
    slot: Annotated[str | None, typer.Option(help="The slot to read; its position is not moved.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read this recording instead of a slot.")] = None,
    publication: Annotated[
        list[str] | None, typer.Option(help="Publications to read; may be repeated. Default: all.")
    ] = None,
    plugin: Annotated[
        str, typer.Option(help="The slot's output plugin: pgoutput, test_decoding, wal2json, decoderbufs.")
    ] = "pgoutput",
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the plugin, name=value; may be repeated.")
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Also write the raw messages to this file.")] = None,
    consumer: Annotated[
        str | None, typer.Option(help="Give the changes to module:Class, see docs/plugins.md.")
    ] = None,
    consume: Annotated[
        bool, typer.Option("--consume", help="Move the slot on behind what was shown.")
    ] = False,
) -> None:
    """Print a slot's pending changes as JSON lines, without consuming them."""
    from infra.decode import Wanted, lines

    publications, options = tuple(publication or ()), tuple(option or ())
    for line in lines(Wanted(dsn, slot, file, publications, plugin, options, record, consumer, consume)):
        sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")


@app.command(rich_help_panel=CARE)
def drop(
    pipeline: PipelineArgument,
    lake: Annotated[bool, typer.Option("--lake", help="Also remove the lake's tables.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """End the pipeline: drop its slot and the publications it made; keep the lake unless told otherwise."""
    with _open(pipeline) as opened:
        if not yes:
            what = "the slot and the lake tables" if lake else "the slot"
            typer.confirm(f"Drop {what} of pipeline {opened.name}?", abort=True)
        report = opened.drop(lake=lake)
    output.show(report, as_json, output.drop_text)


@app.command(rich_help_panel=CARE)
def recover(
    pipeline: PipelineArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Carry out the plan.")] = False,
    as_json: JsonOption = False,
) -> None:
    """After a lost or invalidated slot: show the plan, and with --yes copy all tables again."""
    with _open(pipeline) as opened, output.progress(as_json) as progress:
        report = opened.recover(carry_out=yes, progress=progress)
    output.show(report, as_json, output.recover_text)


@app.command(rich_help_panel=CARE)
def ddl(pipeline: PipelineArgument) -> None:
    """Pending schema changes (not in this version: added columns are followed, others are refused)."""
    raise PipelineFileError(
        "the ddl command is not in this version",
        where=str(pipeline),
        way_out="added columns are followed by sync; after other changes: slotlake backfill --table T",
    )


@app.command(rich_help_panel=DEVELOP)
def bench(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME…]")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures here.")] = None,
) -> None:
    """Paired timings against a peer or a limit, in one run, as ratios."""
    from infra.bench import run

    raise typer.Exit(run(names or [], json_file))


@app.command(rich_help_panel=DEVELOP)
def test() -> None:
    """Run the tests (the launcher does this: ./slotlake test [pytest arguments])."""
    raise typer.Exit(_only_by_launcher("test"))


@app.command(rich_help_panel=DEVELOP)
def check() -> None:
    """Format, lint, types, import rules and the fast tests (by the launcher: ./slotlake check)."""
    raise typer.Exit(_only_by_launcher("check"))


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
    except Exception:
        traceback.print_exc()
        return _say("this is a defect of slotlake itself; nothing was confirmed to the server", DEFECT)
    return outcome if isinstance(outcome, int) else 0


def _say(message: str, exit_code: int) -> int:
    sys.stderr.write(f"slotlake: {message}\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
