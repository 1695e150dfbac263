"""Taking pushes: in Fleet's own process, or in several processes that share the ports and hand on what they heard."""
