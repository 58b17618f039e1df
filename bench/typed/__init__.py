"""How long commands take as a person types them, each in a process of its own: a query, the tutorial.

Others import `queries` and `tutorial`.
"""
