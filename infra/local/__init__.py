"""The local stack: PostgreSQL, Java, jars, Spark Connect and Airflow on one machine, started and ended."""
