"""Is the lake equal to the source? Reconciliation at an exact position, and what it found, as an expectation."""
