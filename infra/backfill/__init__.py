"""Backfills: rows read again from the source; replays of archived batches.

Others import `backfill`, `replay` and `report`.
"""
