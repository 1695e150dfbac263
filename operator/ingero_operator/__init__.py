"""Reconciles FleetCluster and EchoStore into the running components."""
