"""Archived batches once more, in a scratch copy of the lake."""
