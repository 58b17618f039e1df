"""What Spark's executors compute for a comparison, and how they are asked."""
