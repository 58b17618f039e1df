"""What is in an object store: the change log, which a folder of each machine follows, and the state.

Others import `free_notes`, `state` and `store`.
"""
