"""From the slot to a batch: the replication connection, the backlog through SQL, the puller."""
