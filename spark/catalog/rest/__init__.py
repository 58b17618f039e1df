"""A REST server as catalog, with its own metadata, or with ours staged beside it."""
