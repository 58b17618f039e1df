"""Defines no DAG. It raises an Airflow import error that lists the wrong pipeline files and their errors.

Airflow switches off all DAGs of a file with an import error. Because this is a separate file, the DAGs of
the other pipelines continue.
"""

from airflow.sdk.exceptions import AirflowException

from slotlake.infra.airflow import scheduling

if problems := scheduling.problems():
    raise AirflowException("\n".join(str(problem) for problem in problems))
