"""Copies of tables: the engine that reads whole tables, its record, and the machines that share it.

`copying` is the engine.  Who reads tables says when, which, and how they are published: `bootstrap` (the
initial copy), `tables` (in place of what the lake has), `infra.sync`, `infra.backfill`.
Others import `bootstrap`, `copying`, `described`, `forward`, `joining_record`, `record`, `tables`,
`unfinished` and `worker`.
"""
