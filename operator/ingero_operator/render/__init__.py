"""From resources to manifests. Every function is pure, returns fresh containers, and `None` for unwanted objects."""
