"""The command line. `main` is the program `fedaccord`; every verb imports what it needs when it is called, so `--help` is quick."""

from fedaccord.cli.main import main

__all__ = ["main"]
