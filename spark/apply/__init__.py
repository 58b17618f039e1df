"""Applies a batch: stages every table that it touches.

Others import `lossy`, `stage`, `together` and `trial`.
"""
