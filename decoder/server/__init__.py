"""Connections to the source, what every session depends on, and what a refusal means."""
