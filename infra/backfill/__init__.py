"""Backfills: rows read again from the source; replays of archived batches."""
