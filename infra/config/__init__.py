"""The pipeline file: its grammar, its defaults, its secrets, and its choices for tables.

Others import `airflow`, `airflow_connection`, `catalog_kind`, `durations`, `identity`, `new_file`,
`notify`, `of_tables`, `password`, `pipeline_file`, `private_files`, `secrets`, `sections`, `table_names`,
`unencrypted` and `whole_file`.
"""
