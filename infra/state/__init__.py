"""What a pipeline notes, in a folder or an object store: its notes, its journal, its change log.

Others import `batch_notes`, `events`, `free_notes`, `json_log`, `notes`, `process_lock`, `quarters`,
`recorded`, `segments`, `shared_journal`, `stored_changelog`, `stored_state`, `totals` and `verified`.
"""
