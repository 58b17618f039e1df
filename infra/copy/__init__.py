"""Copies of tables: the initial copy, tables that join later, and copies that were cut off.

Others import `bootstrap`, `copying`, `described`, `forward`, `joining_record`, `states`, `steps`, `tables`,
`unfinished` and `worker`.
"""
