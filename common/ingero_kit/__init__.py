"""What every component needs and none owns. A room here must be extractable as a library."""
