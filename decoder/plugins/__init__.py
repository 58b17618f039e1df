"""Output plugins seen from the reading side: one change model, one interface, a reader for each plugin.

Others import `changelog`, `consumer`, `delivery`, `jsonlines`, `live`, `model` and `readers`.
"""
