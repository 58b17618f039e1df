"""Who is notified of what needs a person: what is new, over, or lasts, in one message a look.

Others import `airflow_address`, `news`, `notifier`, `sending` and `notified`.
"""
