"""The sync to now: new tables, tables that come back, batch after batch until the source is reached.

Others import `catch_up`, `compaction`, `modes`, `refill` and `resuming`.
"""
