"""Judges recorded histories with the live detector: which nodes were slow, since when, on what evidence."""
