"""The local stack: PostgreSQL, Java, jars, Spark Connect and Airflow on one machine, started and ended.

Others import `airflow`, `airflow_client`, `jars`, `java`, `object_store`, `postgres`, `postgres_binaries`,
`process`, `runtime` and `spark_connect`.
"""
