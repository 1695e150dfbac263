"""`python -m ingero_agent` is the console script."""

from ingero_agent.cli import main

main()
