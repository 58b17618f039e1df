"""Values in PostgreSQL's binary format: reads them into Arrow, or prints the same text as PostgreSQL."""
