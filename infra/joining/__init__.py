"""Tables that join the publication later: copied over several syncs while transactions are open.

Others import `joining_tables`, `over_syncs` and `recopying`.
"""
