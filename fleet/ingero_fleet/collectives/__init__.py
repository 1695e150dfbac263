"""Finds the rank that collectives wait for: points in, grouped by collective, late rank out. Statistics are pure."""
