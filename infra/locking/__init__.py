"""The locks of a pipeline: a file of this machine, and an advisory lock in PostgreSQL against other machines.

Others import `holder`, `machine`, `pipeline_locks` and `shared`.
"""
