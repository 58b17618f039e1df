"""Rows from the source become tables or replace rows: first copy, replacement, amendment."""
