"""`slotlake demo`: everything on this machine, with a proof at the end.

Others import `demo`.
"""
