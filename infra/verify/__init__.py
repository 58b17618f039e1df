"""Proof: the comparison of source and lake at one exact LSN, and what it leaves behind.

Others import `background` and `verification`.
"""
