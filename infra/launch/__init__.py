"""The launcher, which runs before anything is installed: it uses only the standard library.

Others import `certificates` and `folders`.
"""
