"""Compiled loops: numba's settings, its cache on disk, and plain memory for arrays."""
