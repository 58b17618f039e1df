"""What Airflow calls when a run of `cdc_sync` is late (`airflow.deadline`): it says how late the lake is.

It runs in a worker, next to the run, which goes on.  Invariant: it changes nothing and waits for no other
run; what it cannot find out is missing from its words, and does not keep it from warning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.slots.pressure import span
from slotlake.infra.airflow.scheduling import hide_secrets, kind_of_run, on_warning
from slotlake.infra.config.pipeline_file import PipelineFile, load_pipeline
from slotlake.infra.status.watch import megabytes

_log = logging.getLogger(__name__)


class LateError(Exception):
    """What ``monitor.on_warning`` gets as ``exception``: the run is late."""


def warn(pipeline_file: str, context: Mapping[str, Any]) -> None:
    """Write to the callback's log that a run is late, and call ``monitor.on_warning`` of the pipeline file.

    Args:
        context: Airflow's, with the run and its deadline.
    """
    file = load_pipeline(pipeline_file)
    hide_secrets(pipeline_file)
    text = late_text(file, context, _lag(pipeline_file))
    _log.warning(text)
    tell = on_warning(file)
    if tell is not None:
        tell({**context, "exception": LateError(text)})


def late_text(file: PipelineFile, context: Mapping[str, Any], lag: str) -> str:
    """Return the warning in words.

    Args:
        lag: the state of the lake, in words.
    """
    dag, run = f"cdc_sync_{file.name}", context.get("dag_run", {}).get("dag_run_id", "")
    allowed = span(file.airflow.deadline or 0.0)
    if kind_of_run(file) == "continuous":
        allowed += f" after its time (run_for, {span(file.airflow.run_for)})"
    return (
        f"pipeline {file.name} is late: run {run} of {dag} has not ended within {allowed}; {lag}\n"
        "  what to do: read the log of the task of this run that works or waits. If none works, look whether "
        f"the pool {file.pool} is taken and the scheduler lives; slotlake status {file.path.name} says more"
    )


def _lag(pipeline_file: str) -> str:
    try:
        from slotlake.infra.airflow.steps import status

        report = status(pipeline_file)
    except (SlotlakeError, OSError) as error:
        return f"how far the lake is behind is not known: {str(error).splitlines()[0]}"
    seconds, size = report["lag_seconds"], report["lag_bytes"]
    if seconds is None and size is None:
        return f"the pipeline is {report['state']}"
    behind = [*([] if seconds is None else [span(seconds)]), *([] if size is None else [megabytes(size)])]
    return f"the lake is {' and '.join(behind)} of WAL behind the source, state {report['state']}"
