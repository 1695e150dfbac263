"""Turns the agent's socket events into Prometheus metrics."""
