"""The change log in an object store: this machine's folder follows it, and brings to it what is new.

Others import `store`.
"""
