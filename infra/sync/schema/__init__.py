"""What a batch meets when the source's tables change: what is followed, and what is copied again."""
