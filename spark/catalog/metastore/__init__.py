"""AWS Glue, or a Hive Metastore, as catalog: one table at a time."""
