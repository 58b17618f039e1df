"""The columnar decoder: a buffer of messages in, typed Arrow tables out.

Others import `buffer` and `decoder`.
"""
