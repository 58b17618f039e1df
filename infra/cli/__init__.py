"""The `slotlake` command: arguments in, one report out.

Others import `progress_display`, `run` and `texts`.
"""
