"""What the files in dags/ share: which pipelines there are, and how a step runs as a task."""
