"""The pipeline file: its grammar, its defaults, its secrets, and what it selects of the source."""
