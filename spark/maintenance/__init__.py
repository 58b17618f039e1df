"""Keeps tables small and quick: rewrites, expiry, integrity, removal."""
