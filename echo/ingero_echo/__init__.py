"""Keeps every event and answers questions about them."""
