"""Names and values that processes exchange, each defined once. Standard library only, no logic."""
