"""Which rows, columns and operations the lake takes, evaluated as PostgreSQL would."""
