"""Replication slots and the snapshots that belong to them.

Others import `capacity`, `confirm`, `failover`, `position`, `pressure`, `slot`, `visible` and `writers`.
"""
