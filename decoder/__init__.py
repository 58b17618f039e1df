"""The PostgreSQL side: slots, wire protocol, types, initial copy; it ends in the change log on disk."""
