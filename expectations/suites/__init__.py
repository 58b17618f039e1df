"""Suites of the user's own Great Expectations, checked on Spark.

Others import `of_users`.
"""
