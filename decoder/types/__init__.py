"""The one table of types, and every conversion between PostgreSQL's values and Arrow's."""
