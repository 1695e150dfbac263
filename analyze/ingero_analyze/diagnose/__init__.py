"""Judges operation timelines of a synchronised job: which rank delays it, or that none does."""
