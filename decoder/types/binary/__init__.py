"""Values in PostgreSQL's binary format: read into Arrow, or printed as PostgreSQL prints them."""
