"""What a pipeline's tables cost: those that a batch touches, and those that are there besides.

Others import `placed` and `sizes`.
"""
