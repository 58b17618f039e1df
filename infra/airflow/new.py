"""The DAG `cdc_new`: a pipeline file from a connection of Airflow, as `slotlake new` makes one at a terminal.

The file is written where the DAG files look for pipeline files, so that its DAGs appear by themselves. It
names the connection, and holds no password.  Invariant: a file that is there stays, unless the form says
otherwise; the task then checks it once more. So it can be run until source and role have what they need.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotlake.decoder.errors import PipelineFileError, SlotlakeError
from slotlake.infra.airflow import scheduling
from slotlake.infra.config.new_file import NewFile
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.config.whole_file import write_whole

if TYPE_CHECKING:
    from slotlake.infra.making import Server
    from slotlake.infra.status.at_source import TableAtSource
    from slotlake.infra.status.validation import Check, ValidationReport

# The fields of the form, by the options of `slotlake new`, which errors name.
_FORM = {"dsn": "Connection", "name": "Name", "tables": "Tables", "lake": "Lake", "overwrite": "Overwrite"}
_FLAG = re.compile(rf"--({'|'.join(_FORM)})\b")
_TABLES_MAX = 100  # that are listed
_log = logging.getLogger(__name__)


def folder() -> Path | None:
    """Return where a new pipeline file belongs: the first folder with pipeline files; None without one."""
    entries = filter(None, os.environ.get(scheduling.VARIABLE, "").split(os.pathsep))
    return next((path for entry in entries if (path := Path(entry).expanduser()).is_dir()), None)


def new_pipeline(form: Mapping[str, Any]) -> dict[str, Any]:
    """Look at a server, write a pipeline file for it, and check the file; see `cdc_new`.

    Args:
        form: ``connection``, ``name``, ``tables``, ``lake``, ``overwrite``.

    Raises:
        AirflowFailException: something is wrong, or lacking; the message says what to do.
        AirflowException: the server cannot be reached; a new attempt can help.
    """
    from slotlake.infra.airflow.versions import AirflowException, AirflowFailException

    try:
        report = _made(form)
    except SlotlakeError as error:
        kind = AirflowException if error.retryable else AirflowFailException
        raise kind(_FLAG.sub(lambda flag: _FORM[flag[1]], str(error))) from None
    errors = [check for check in report.checks if check.result == "error"]
    if errors:
        lines = [f"{check.what}\n  what to do: {check.way_out}" for check in errors]
        first = f"{report.file} is there, and cannot be used yet. Mend this, and trigger the DAG again"
        first += " (with Overwrite, if what the form said was wrong):"
        raise AirflowFailException("\n".join([first, *lines]))
    name = load_pipeline(report.file).name
    _log.info(
        "the DAGs of %s appear when Airflow has read the DAG files again; begin with cdc_bootstrap_%s",
        name,
        name,
    )
    warnings = sum(check.result == "warning" for check in report.checks)
    return {"pipeline": name, "file": report.file, "warnings": warnings}


def _made(form: Mapping[str, Any]) -> ValidationReport:
    from slotlake.infra.making import connected, fitting_name, lacks_rights, pipeline_name
    from slotlake.infra.source.grants import grants
    from slotlake.infra.status.validation import validate

    place = folder()
    if place is None:
        raise PipelineFileError(
            f"{scheduling.VARIABLE} names no folder, so there is no place for a new pipeline file",
            where="the worker's environment",
            way_out="name a folder in it, for DAG processor, workers and API server",
        )
    server = connected(f"airflow:{form['connection']}")
    name = pipeline_name(form.get("name") or fitting_name(server.database))
    path = place / f"{name}.yaml"
    if path.exists() and not form.get("overwrite"):
        _log.info("%s is there, and is checked once more; Overwrite would write it again", path)
    else:
        _write(path, name, server, form)
    scheduling.hide_secrets(str(path))
    report = validate(path)
    _log_checks(report.checks)
    if not server.is_superuser and lacks_rights(report):
        _log.warning("a superuser can give the role what it lacks:\n%s", grants(load_pipeline(path)))
    return report


def _write(path: Path, name: str, server: Server, form: Mapping[str, Any]) -> None:
    from slotlake.infra.making import ALL, chosen_lines, require_some, with_lake
    from slotlake.infra.status.at_source import tables_at_source

    new_file = with_lake(NewFile(name, server.given), form["lake"], path)
    offered = tables_at_source(new_file.draft(path.absolute()))
    require_some(offered, server)
    _log_tables(offered)
    text = replace(new_file, tables=chosen_lines(_words(form.get("tables") or ()) or ALL, offered)).text()
    _log.info("%s:\n%s", path, text)
    write_whole(path, text)


def _words(tables: Sequence[str]) -> str:
    return " ".join(tables)


def _log_tables(offered: Sequence[TableAtSource]) -> None:
    _log.info("the source has %s tables", f"{len(offered):,}")
    for table in offered[:_TABLES_MAX]:
        key = f"key {', '.join(table.key)}" if table.key else "no key"
        notes = "".join(f"; {note}" for note in table.notes)
        _log.log(logging.WARNING if notes else logging.INFO, "%s: %s%s", table.written, key, notes)


def _log_checks(checks: Iterable[Check]) -> None:
    levels = {"error": logging.ERROR, "warning": logging.WARNING}
    for check in checks:
        way_out = f"; what to do: {check.way_out}" if check.way_out else ""
        level = levels.get(check.result, logging.INFO)
        _log.log(level, "%s: %s: %s%s", check.name, check.result, check.what, way_out)
