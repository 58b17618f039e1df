"""The pipeline file: its grammar, its defaults, its secrets, and its choices for tables.

Others import `airflow`, `catalog_kind`, `durations`, `identity`, `of_tables`, `pipeline_file`,
`private_files`, `secrets`, `sections` and `unencrypted`.
"""
