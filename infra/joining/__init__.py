"""Tables that join the publication later: copied over several syncs, beside open transactions."""
