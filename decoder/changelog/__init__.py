"""The change log on disk: batches that exist whole or not at all."""
