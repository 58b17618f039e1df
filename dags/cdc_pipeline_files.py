"""No DAG of its own: an Airflow import error that tells which pipeline files are wrong, and why.

It is a file of its own because Airflow switches off all DAGs of a file with an import error; so the other
pipelines go on.
"""

from airflow.sdk.exceptions import AirflowException

from slotlake.infra.airflow import scheduling

if problems := scheduling.problems():
    raise AirflowException("\n".join(str(problem) for problem in problems))
