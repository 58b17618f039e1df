"""An open pipeline, and what it holds while it is open: locks, Spark, its connection to the slot, its state.

Others import `engine`, `full_disk`, `lock_holder`, `machine_lock`, `open_pipeline`, `own_state`,
`pipeline_locks`, `readers`, `server_lock` and `standing`.
"""
