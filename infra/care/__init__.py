"""Proof, upkeep and the end of a pipeline: verification, maintenance, the tables' format, dropping.

Others import `dropping`, `maintenance`, `table_format`, `table_layout` and `verification`.
"""
