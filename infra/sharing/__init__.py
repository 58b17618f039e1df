"""What the machines share that make one copy together: its plan, the claims on ranges, and the ranges done.

Others import `claims`, `plan` and `ranges`.
"""
