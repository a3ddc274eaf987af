"""`python -m loadtest` is the `loadtest` command."""

from loadtest.cli import main

main()
