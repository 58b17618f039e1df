"""Derived tables: the history and the change log that stand next to a mirror."""
