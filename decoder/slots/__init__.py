"""Replication slots and the snapshots that belong to them.

Others import `activity`, `capacity`, `confirm`, `failover`, `position`, `pressure`, `slot`, `visible` and
`writers`.
"""
