"""Proof, upkeep and the end of a pipeline: verification, maintenance, the tables' format, dropping.

Others import `dropping`, `maintenance`, `table_format` and `verification`.
"""
