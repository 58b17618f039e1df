"""A source whose tables change: what the lake follows, and what is copied again."""
