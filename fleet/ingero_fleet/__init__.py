"""Receives the health of nodes over OTLP and says which ones are stragglers, since when, why and at what cost."""
