"""What is known of a pipeline's health: one model, and the metrics and pages that are made of it.

Others import `data_docs`, `html`, `metrics`, `model` and `words`.
"""
