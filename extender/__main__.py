"""`python -m extender` is `berth`."""

from extender.cli.main import main

main()
