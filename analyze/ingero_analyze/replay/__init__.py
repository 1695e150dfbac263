"""Judge recorded histories with the live detector: who was slow, since when, on what evidence."""
