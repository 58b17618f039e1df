"""Copies of tables: the first day, tables that join later, and copies that were cut off."""
