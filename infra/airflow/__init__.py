"""What the files in dags/ share: the list of pipelines, and how a task runs a step.

Others import `approval`, `assets`, `backfill`, `monitoring`, `new`, `scheduling`, `step_task` and `steps`.
"""
