"""The DAG files as a package, for users who have installed slotlake and have no checkout.

Two files of one line each in a DAGs folder make all DAGs (docs/airflow.md)::

    from slotlake.dags import *  # DAGs for Airflow
    import slotlake.dags.cdc_pipeline_files  # DAGs for Airflow: which pipeline files are wrong

Python imports the modules that ``__all__`` names, and each module makes the same DAGs as its file would.
``cdc_pipeline_files`` is not one of them: its import error would switch off all DAGs of the importing file.
"""

__all__ = [
    "cdc_backfill",
    "cdc_bootstrap",
    "cdc_maintenance",
    "cdc_monitor",
    "cdc_new",
    "cdc_recover",
    "cdc_sync",
    "cdc_tables",
    "cdc_verify",
]
