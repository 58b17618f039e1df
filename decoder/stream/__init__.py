"""From the slot to a batch: the replication connection, the backlog through SQL, the puller.

Others import `bulk`, `copy_data`, `framing`, `nap`, `options`, `overlap`, `preflight`, `pull`, `puller` and
`receive`.
"""
