"""Readers of output plugins: one model of changes, one interface for consumers, a reader for each plugin.

Others import `changelog`, `consumer`, `delivery`, `jsonlines`, `live`, `model` and `readers`.
"""
