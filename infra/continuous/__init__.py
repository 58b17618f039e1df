"""The loop of `slotlake run`: it waits for changes, and makes one micro-batch after another.

Others import `loop`.
"""
