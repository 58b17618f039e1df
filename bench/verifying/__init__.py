"""What a verification costs the source.

Others import `load`.
"""
