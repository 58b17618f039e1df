"""Publishes: moves all tables and `commits` in one catalog transaction; the kept points."""
