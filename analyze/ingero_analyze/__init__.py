"""Tools for recorded data: `replay`, `diagnose`, and a load generator for receivers."""
