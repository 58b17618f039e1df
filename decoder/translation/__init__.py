"""Translates texts from the database's encoding to UTF-8, for streams that the server cannot translate.

Others import `messages`.
"""
