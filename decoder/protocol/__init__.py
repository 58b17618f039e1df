"""The pgoutput protocol without any I/O: messages, one reader of a message, one of a stream.

Others import `cursor`, `message_record`, `messages`, `reader`, `records`, `relation_reading`, `relations` and
`wire`.
"""
