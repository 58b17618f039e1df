"""Golden vectors: what real servers sent for the statements in ``cases/``, and what it means.

``pg<version>/<case>.hex`` holds one message a line, its WAL start and its bytes; ``<case>.json`` the
messages as the plain reader saw them when captured (reviewed by a person), and the published tables as
the server itself printed them afterwards.  ``python -m tests.vectors.capture`` captures all anew.
"""
