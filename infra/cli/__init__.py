"""The `slotlake` command: arguments in, one report out."""
