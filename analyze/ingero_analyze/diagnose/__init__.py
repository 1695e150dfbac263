"""Judge operation timelines of a synchronised job: which rank holds it back, or that no rank does."""
