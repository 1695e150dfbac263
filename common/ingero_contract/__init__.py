"""Names and values that cross a process boundary, each spelled once. Standard library only, no behaviour."""
