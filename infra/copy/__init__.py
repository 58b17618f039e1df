"""Copies of tables: the initial copy, tables that join later, and copies that were cut off."""
