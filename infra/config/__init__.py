"""The pipeline file: its grammar, its defaults, its secrets, and its choices for tables."""
