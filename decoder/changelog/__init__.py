"""The change log on disk: batches that exist whole or not at all.

Others import `batches`, `difference`, `incoming`, `row_keys`, `touched` and `writer`.
"""
