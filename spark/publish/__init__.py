"""Publishes: moves all tables and `commits` in one catalog transaction; the kept points.

Others import `absent`, `aside`, `aside_write`, `commits`, `commits_trim`, `derived_tables`, `lives`,
`origins`, `past`, `pins`, `place`, `points`, `position`, `publication`, `removed`, `rewind`, `shape`,
`sidecar` and `swap`.
"""
