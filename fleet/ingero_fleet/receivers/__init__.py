"""Receives pushes: in Fleet's own process, or in several that share the ports and forward the reports."""
