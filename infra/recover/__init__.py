"""What is wrong with a pipeline, and what mends it."""
