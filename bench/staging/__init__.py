"""How a batch is staged: by slotlake itself, or by Spark's MERGE.

Others import `direct`.
"""
