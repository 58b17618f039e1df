"""`slotlake demo`: the whole chain on this machine, with a proof at the end."""
