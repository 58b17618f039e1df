"""The journal of a pipeline: what its runs note about themselves, bounded in size, in the state folder.

Others import `batches`, `events`, `journal`, `json_log`, `quarters`, `totals` and `verified`.
"""
