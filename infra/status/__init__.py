"""Where a pipeline stands, what its slot costs, and what to warn of."""
