"""Compiled loops: numba's settings, its cache on disk, and plain memory for arrays.

Others import `arrays`, `jit`, `memory`, `wide` and `words`.
"""
