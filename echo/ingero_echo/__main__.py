"""`python -m ingero_echo` is the console script."""

from ingero_echo.cli import main

main()
