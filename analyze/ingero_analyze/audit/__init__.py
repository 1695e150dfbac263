"""Finds chips and nodes that are chronically slower than their like, from sparse runs of a benchmark or of jobs."""
