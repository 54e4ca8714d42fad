"""The command line: ``fullbore VERB ...``."""

from fullbore.cli.app import main

__all__ = ["main"]
