"""The live page for people: what Fleet knows, as a picture that keeps up to date. Read-only, off the hot path."""
