"""Proof, upkeep and the end of a pipeline: verification, maintenance, dropping.

Others import `dropping`, `maintenance` and `verification`.
"""
