"""Streamed and prepared transactions, put together to whole ones in commit order.

Others import `assembler`, `prepared` and `spool`.
"""
