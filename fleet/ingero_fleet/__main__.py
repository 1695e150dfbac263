"""`python -m ingero_fleet` is the console script."""

from ingero_fleet.cli import main

main()
