"""Upkeep: add and remove tables, rewrite and expire files, change format or layout, end a pipeline.

Others import `adding`, `dropping`, `maintenance`, `of_tables` and `removing`.
"""
