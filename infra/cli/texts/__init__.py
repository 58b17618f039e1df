"""The text that people read for each report, in files named as those of the commands."""
