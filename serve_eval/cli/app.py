"""The door: what every command shares, and the list of commands."""

from __future__ import annotations

import sys

import typer

import serve_eval
from serve_eval.cli import demo, power, references, run
from serve_eval.cli import listing as listing_command
from serve_eval.errors import ServeEvalError

app = typer.Typer(
    help="Does a running LLM endpoint still answer as well as it should?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
)
app.command("run")(run.run)
app.command("power")(power.power)
app.add_typer(references.app, name="references")
app.command("list")(listing_command.listing)
app.command("demo")(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"serve-eval {serve_eval.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Holds the options that stand before a command."""


def main() -> None:
    """Runs the command line. Errors that a user can act on end with their message, a hint and their exit code."""
    if sys.platform == "win32":
        sys.exit("serve-eval runs on Linux and macOS. On Windows, use it inside WSL.")
    try:
        app()
    except ServeEvalError as error:
        from serve_eval.report.text import clean

        lines = [f"error: {clean(str(error))}", *([clean(error.hint)] if error.hint else [])]
        print("\n".join(lines), file=sys.stderr)  # noqa: T201  (the door may print)
        sys.exit(error.exit_code)
