"""What is wrong with a pipeline, and what mends it.

Others import `approved`, `recovery` and `report`.
"""
