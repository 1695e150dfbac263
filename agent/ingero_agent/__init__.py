"""Measures a node and pushes its health."""
