"""The command line: one command per file. Heavy imports happen inside the command that needs them."""

from serve_eval.cli.app import main

__all__ = ["main"]
