"""What cdc_recover is made of: a plan, a person who approves it in Airflow, and the recovery.

Invariant: nothing changes unless a person has chosen Approve, and then only by the plan that this person has
read (`infra.recover.approved`). Who may answer is Airflow's business: whoever may change the DAG.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator

from slotlake.infra.airflow.scheduling import shortened

PLAN, APPROVE, RECOVER = "plan", "approve", "recover"
MARKDOWN = "plan_markdown"
_ANSWER_WITHIN = timedelta(days=1)
_LINES_MAX = 100
_MARKED = re.compile(r"([\\`*_{}\[\]<>#|~])")
_ESCAPED = r"\\\1"


class PlanApproval(ApprovalOperator):  # type: ignore[misc]  # Airflow is not followed
    """Shows the plan of the task `plan`; a rejected one is a skipped task that says who rejected it."""

    def __init__(self, *, pipeline_name: str, **options: Any) -> None:
        super().__init__(
            subject=f"Recover pipeline {pipeline_name}?",
            body=f"{{{{ ti.xcom_pull(task_ids='{PLAN}', key='{MARKDOWN}') }}}}",
            defaults=ApprovalOperator.REJECT,
            response_timeout=_ANSWER_WITHIN,
            pool="default_pool",  # who waits for a person must not keep the slot from others
            **options,
        )

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """Go on with the answer.

        Raises:
            AirflowSkipException: the plan was rejected, or nobody answered.
        """
        from slotlake.infra.airflow.versions import AirflowSkipException

        if event.get("chosen_options") == [self.REJECT]:
            person = event.get("responded_by_user")
            reason = f"{_name(person)} rejected the plan" if person else "nobody answered within a day"
            raise AirflowSkipException(f"{reason}: nothing was changed; to see it again, trigger the DAG")
        return super().execute_complete(context, event)


def plan(pipeline_file: str, task_instance: Any, *, dry_run: bool) -> dict[str, Any]:
    """Make the plan, for a person to approve.

    Args:
        dry_run: only show the plan, and ask nobody.

    Raises:
        DownstreamTasksSkipped: nothing is wrong; Airflow takes the task for a success.
        AirflowSkipException: something is wrong, and this was a dry run.
    """
    from slotlake.infra.airflow import steps  # here, because its imports are slow
    from slotlake.infra.airflow.versions import AirflowSkipException, DownstreamTasksSkipped

    report = steps.plan_recovery(pipeline_file)
    short = shortened(report)
    if not report["findings"]:
        task_instance.xcom_push(key="return_value", value=short)
        raise DownstreamTasksSkipped(tasks=[APPROVE, RECOVER])
    task_instance.xcom_push(key=MARKDOWN, value=markdown(report))
    if dry_run:
        task_instance.xcom_push(key="return_value", value=short)
        count = len(report["findings"])
        wrong = "1 thing is wrong" if count == 1 else f"{count:,} things are wrong"
        raise AirflowSkipException(f"{wrong}, and this was a dry run: nothing was changed, nobody was asked")
    return short


def recover(
    pipeline_file: str, planned: Mapping[str, Any], answer: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Carry out the plan that was approved.

    Args:
        planned: what the task `plan` returned.
        answer: what the task `approve` returned; None if somebody marked it as a success by hand.

    Raises:
        AirflowFailException: nobody approved the plan, or it would be another one now; nothing was changed.
    """
    from slotlake.infra.airflow import steps
    from slotlake.infra.airflow.versions import AirflowFailException

    if not answer or answer["chosen_options"] != [ApprovalOperator.APPROVE]:
        raise AirflowFailException("nobody approved the plan: nothing was changed; trigger the DAG again")
    return steps.recover(pipeline_file, planned["plan_name"])


def markdown(report: Mapping[str, Any]) -> str:
    """Return a plan as people read it in Airflow: what is wrong, what is done, what is lost, what it costs.

    Args:
        report: of `plan_recovery`.
    """
    from slotlake.infra.health.words import size
    from slotlake.infra.progress import counted
    from slotlake.infra.recover.approved import MARGIN

    rows, tables = counted(report["rows"], "row"), counted(report["written"], "table")
    cost = f"about {rows}, {size(report['bytes'])}, in {tables}"
    still = (
        f"The lake is at {report['lsn']}. If anything of this has changed when it is carried out, the "
        f"recovery refuses and changes nothing. Only rows that differ may have become more: {MARGIN}."
    )
    return "\n\n".join(
        [
            *_part("What is wrong", (finding["what"] for finding in report["findings"])),
            *_part("What is done, in this order", report["plan"]),
            *_part("What is lost for good", report["lost"] or ["nothing"]),
            *_part("What it costs", [f"{cost}, are read from the source and written"]),
            still,
        ]
    )


def _part(title: str, lines: Iterable[str]) -> Iterator[str]:
    every = list(lines)
    more = len(every) - _LINES_MAX
    shown = [f"- {_MARKED.sub(_ESCAPED, line)}" for line in every[:_LINES_MAX]]
    yield f"#### {title}"
    yield "\n".join([*shown, *([f"- and {more:,} more: slotlake recover lists them"] if more > 0 else [])])


def _name(person: Any) -> str:
    return str(person["name"] if isinstance(person, Mapping) else person.name)
