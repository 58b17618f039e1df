"""The micro-batch: pull, apply, publish, confirm; and the tables that are set aside."""
