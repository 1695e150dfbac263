"""Helpers that all components share. Each module must be usable as a library of its own."""
