"""The lake side: from the change log to Iceberg tables, published together, and read at one position."""
