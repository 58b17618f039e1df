"""Connections to the source, the settings of each session, and the meaning of each refusal.

Others import `closing`, `libpq`, `position`, `privileges`, `refusals`, `reuse`, `services`,
`session_settings`, `short_lived`, `silence`, `source`, `timeline` and `waiting`.
"""
