"""Proof, upkeep and the end of a pipeline: verification, maintenance, the tables' format, dropping.

Others import `background`, `dropping`, `maintenance`, `table_format`, `table_layout` and `verification`.
"""
