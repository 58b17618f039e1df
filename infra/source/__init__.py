"""How a pipeline asks its source: history, catalog fingerprints, and batches from its slot."""
