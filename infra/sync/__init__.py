"""Bring the lake to an LSN, batch after batch: pull, apply, publish, confirm; tables that join or come back.

Others import `at_lsn`, `batch_steps`, `catch_up`, `compaction`, `findings`, `gates`, `joining_tables`,
`loop`, `modes`, `nonblocking`, `reading_again`, `recopying`, `refill`, `resuming` and `schema`.
"""
