"""How late rows are when Airflow schedules the micro-batches.

Others import `scheduled`.
"""
