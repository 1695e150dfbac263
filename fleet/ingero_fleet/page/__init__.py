"""The live page: shows the state of the fleet and updates itself after every tick. Read-only, off the hot path."""
