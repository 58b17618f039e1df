"""What composes and runs slotlake: the pipeline, the command, the launcher and the local stack."""
