"""Is the lake equal to the source? Reconciliation at an exact position, and an expectation over it."""
