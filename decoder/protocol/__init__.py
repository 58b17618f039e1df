"""The pgoutput protocol without any I/O: messages, one reader of a message, one of a stream."""
