"""The sync to now: new tables, tables that come back, batch after batch until the source is reached; `run`.

Others import `catch_up`, `compaction`, `loop`, `modes`, `reading_again`, `refill` and `resuming`.
"""
