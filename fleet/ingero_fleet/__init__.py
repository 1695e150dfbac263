"""Receives health over OTLP and answers with what the cluster knows about itself."""
