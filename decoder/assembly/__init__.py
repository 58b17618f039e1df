"""Assembles streamed and prepared transactions into whole ones, in commit order.

Others import `assembler`, `prepared` and `spool`.
"""
