"""Tell what is wrong with the words of a command line, and what to type instead."""

from __future__ import annotations

import re
from typing import Any

from serve_eval.cli._options import EVERYTHING

PLAINER = (
    (re.compile(r"^No such command "), "there is no command "),
    (re.compile(r"^Missing (option|argument) "), r"required: the \1 "),
    (re.compile(r"^Got unexpected extra arguments? \((.*)\)$"), r"unexpected: \1"),
    (re.compile(r"^Option (\S+) requires an argument$"), r"the option \1 needs a value"),
    (re.compile(r"^Invalid value for (.*?): "), r"\1: "),
)
"""Phrases of typer's messages, and plainer ones."""


def is_usage_error(error: Exception) -> bool:
    """Return True for an error of typer's about the command line."""
    return hasattr(error, "format_message")


def describe_usage(error: Any) -> tuple[str, str]:
    """Return the message about a command line that is not understood, and the command to see."""
    ctx = error.ctx
    path = ctx.command_path if ctx is not None else "serve-eval"
    name = getattr(error, "option_name", None)
    message = error.format_message().rstrip(".")
    if name is not None and hasattr(error, "possibilities"):
        message = f"there is no option {name}{_suggest(name, error.possibilities)}"
    for pattern, plain in PLAINER:
        message = pattern.sub(plain, message)
    help_flag = EVERYTHING if getattr(getattr(ctx, "command", None), "usual", ()) else "--help"
    of = path.partition(" ")[2]
    return (
        f"{of}: {message}" if of else message,
        f"See {path} {help_flag}",
    )


def _suggest(name: str, possibilities: Any) -> str:
    import difflib

    close = difflib.get_close_matches(name, possibilities or (), n=1, cutoff=0.5)
    return f". Did you mean {close[0]}?" if close else ""
