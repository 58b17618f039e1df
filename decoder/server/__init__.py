"""Connections to the source, what every session depends on, and what a refusal means.

Others import `closing`, `libpq`, `position`, `privileges`, `refusals`, `session_settings`, `silence`,
`source`, `timeline` and `waiting`.
"""
