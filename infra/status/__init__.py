"""Where a pipeline stands, what its slot costs, and what to warn of.

Others import `at_source`, `overview`, `schema_changes`, `telling`, `types_report`, `validation` and `watch`.
"""
