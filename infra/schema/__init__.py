"""A source whose tables change: what a batch meets, what is followed, what is copied again."""
