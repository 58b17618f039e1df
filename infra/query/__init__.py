"""Questions of people to the lake: which engine answers them, and at which point.

Others import `queries`.
"""
