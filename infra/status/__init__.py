"""Where a pipeline stands, what its slot costs, and what to warn of.

Others import `at_source`, `noted`, `overview`, `schema_changes`, `types_report`, `validation` and `watch`.
"""
