"""`python -m ingero_analyze` is the console script."""

from ingero_analyze.cli import main

main()
