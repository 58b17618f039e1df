"""What a second machine gains: Spark's workers, executors at all, a helper of the initial copy.

Others import `workers`, `copies` and `executors`.
"""
