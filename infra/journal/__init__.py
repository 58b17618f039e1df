"""The journal of a pipeline: what its runs note about themselves, bounded in size, in its state.

Others import `batches`, `events`, `json_log`, `quarters`, `recorded`, `segments`, `shared`, `totals` and
`verified`.
"""
