"""Tools that people run on what was recorded: `replay`, `diagnose`, and a load generator for receivers."""
