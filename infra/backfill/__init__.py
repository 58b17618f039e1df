"""Rows read again from the source, and archived batches replayed."""
