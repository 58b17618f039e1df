"""What is known of a pipeline's health: one look, one model, and the metrics and pages that are made of it.

Others import `data_docs`, `html`, `look`, `metrics`, `model` and `words`.
"""
