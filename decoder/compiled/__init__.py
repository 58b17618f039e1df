"""Compiled loops: numba's settings, its cache on disk, and access to the plain memory of arrays.

Others import `arrays`, `cache`, `jit`, `memory`, `wide` and `words`.
"""
