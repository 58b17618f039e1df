"""What runs before anything is installed: standard library only, one job, the environment."""
