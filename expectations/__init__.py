"""Compares lake and source: reconciliation at an exact position, and an expectation over it."""
