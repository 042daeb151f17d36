"""`python -m fedaccord.cli`."""

from fedaccord.cli.main import main

main()
