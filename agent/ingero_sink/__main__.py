"""`python -m ingero_sink` is the console script."""

from ingero_sink.cli import main

main()
