"""Drives simulated agents against an OTLP endpoint; bounded in count and time, loopback by default."""
