"""Connections to the source that read under one snapshot, what is read over them, and at which pace.

Others import `pace` and `pool`.
"""
