"""Replication slots and the snapshots that belong to them."""
