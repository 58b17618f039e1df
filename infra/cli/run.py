"""What the command `run` needs: its options as limits, and where its lines go."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import typer

from slotlake.decoder.lsn import parse_lsn
from slotlake.infra.cli.output import print_json
from slotlake.infra.config.durations import duration_seconds
from slotlake.infra.state.json_log import is_json

if TYPE_CHECKING:
    from slotlake.infra.reports import SyncReport
    from slotlake.infra.sync.loop import RunLimits, RunListener


def limits_of(for_: str | None, until_lsn: str | None, interval: str, retry_for: str) -> RunLimits:
    """Return the limits that the options mean.

    Args:
        for_: how long, as `duration_seconds` reads it; None: for ever.
        until_lsn: an LSN; None: none.
        interval: as ``for_``.
        retry_for: as ``for_``.

    Raises:
        typer.BadParameter: a text is no duration, or no LSN.
    """
    from slotlake.infra.sync.loop import RunLimits

    return RunLimits(
        seconds=None if for_ is None else _seconds(for_, "--for"),
        until=None if until_lsn is None else _lsn(until_lsn),
        interval_seconds=_seconds(interval, "--interval"),
        retry_seconds=_seconds(retry_for, "--retry-for"),
    )


def _seconds(text: str, option: str) -> float:
    try:
        return duration_seconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _lsn(text: str) -> int:
    try:
        return parse_lsn(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no LSN: write it as 0/1A2B3C4D", param_hint="--until-lsn"
        ) from None


def listener_of(as_json: bool) -> RunListener:
    """Return a listener that prints batches to standard output, and other events to standard error."""
    from slotlake.infra.sync.loop import RunListener, batch_lines

    def batch(report: SyncReport) -> None:
        if as_json:
            print_json(report.as_dict())
        else:
            sys.stdout.writelines(f"{line}\n" for line in batch_lines(report))
        sys.stdout.flush()

    return RunListener(batch, _report_line)


def _report_line(line: str) -> None:
    if is_json():
        logging.getLogger(__name__).info(line)
    else:
        typer.echo(line, err=True)
