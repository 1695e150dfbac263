"""`python -m ingero_operator` is the console script."""

from ingero_operator.cli import main

main()
