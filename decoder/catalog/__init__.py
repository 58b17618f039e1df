"""What PostgreSQL's catalog says: publications, tables, keys, types, row filters."""
