"""The source as a pipeline asks it: its history, its catalog's fingerprints, batches pulled from its slot."""
