"""Proof, upkeep and the end of a pipeline: verification, maintenance, the tables' format, dropping.

Others import `adding`, `background`, `dropping`, `maintenance`, `of_tables`, `removing` and `verification`.
"""
