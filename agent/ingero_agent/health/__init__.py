"""Pure health: observations in, values and anomalies out. No clock, no I/O, no logging."""
