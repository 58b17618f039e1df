"""Applies a batch: stages every table that it touches."""
