"""Which chips, nodes and groups are always a little slower than their like, from results of benchmarks or jobs."""
