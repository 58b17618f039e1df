"""Replication slots and the snapshots that belong to them.

Others import `activity`, `capacity`, `comparable`, `confirm`, `failover`, `position`, `pressure`, `slot`,
`upgraded`, `visible` and `writers`.
"""
