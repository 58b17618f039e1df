"""What a verification costs the source.

Others import `connections` and `load`.
"""
