"""Texts as the database stores them, translated here to UTF-8, where the server would end the stream.

Others import `messages`.
"""
