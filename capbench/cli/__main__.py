"""`python -m capbench.cli` is the same as `capbench`."""

from capbench.cli.main import main

main()
