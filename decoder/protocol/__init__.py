"""The pgoutput protocol without any I/O: messages, a reader of one message, a reader of a stream.

Others import `cursor`, `message_record`, `messages`, `reader`, `records`, `relation_reading`, `relations` and
`wire`.
"""
