"""The door: what every command shares, and the list of commands."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

import serve_eval
from serve_eval.cli import (
    attribute,
    capsule,
    cases,
    compare,
    datasets,
    demo,
    diagnose,
    drift,
    export,
    power,
    references,
    rescore,
    run,
    serve,
    verdict,
)
from serve_eval.cli import listing as listing_command
from serve_eval.cli import smoke as smoke_command
from serve_eval.cli import suite as suite_command
from serve_eval.cli import watch as watch_command
from serve_eval.cli._streams import prepare_streams, say
from serve_eval.errors import ServeEvalError


class _Commands(TyperGroup):
    """Lists the commands without rich, whose import would take half of the time of `--help`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # click's types are private to typer
        self.rich_markup_mode = None
        super().format_help(ctx, formatter)


app = typer.Typer(
    cls=_Commands,
    help="Does a running LLM endpoint still answer as well as it should?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
)
app.command("run", short_help="Evaluate an endpoint: PASS, FAIL, INCONCLUSIVE.")(run.run)
app.command("compare", short_help="Two endpoints beside each other: is B worse than A?")(compare.compare)
app.command("attribute", short_help="Which server behind a door answers wrong?")(attribute.attribute)
app.command("smoke", short_help="Check an endpoint in seconds: what it does.")(smoke_command.smoke)
app.command("watch", short_help="Watch an endpoint in production, and alarm.")(watch_command.watch)
app.command("diagnose", short_help="Why is a run red, and what to change?")(diagnose.diagnose)
app.command("capsule", short_help="A folder that replays one request of a run.")(capsule.capsule)
app.command("suite", short_help="Run many plans in one folder, one verdict.")(suite_command.suite)
app.command("serve", short_help="Start servers and hold them for other clients.")(serve.serve)
app.command("verdict", short_help="Judge a finished run by another rule.")(verdict.verdict)
app.command("rescore", short_help="Score a run's answers again.")(rescore.rescore)
app.command("export", short_help="A run in the files of lm-eval.")(export.export)
app.command("drift", short_help="Chart the runs of many days.")(drift.drift)
app.command("power", short_help="What drop n samples show, and n for a drop.")(power.power)
app.add_typer(references.app, name="references", short_help="Show, check, register and import references.")
app.add_typer(datasets.app, name="datasets", short_help="List, fetch and verify data sets.")
app.add_typer(cases.app, name="cases", short_help="Your own cases: write, list, encrypt, import.")
app.command("list", short_help="List tasks, launchers and verdict rules.")(listing_command.listing)
app.command("demo", short_help="Judge a tiny real model, sound and damaged.")(demo.demo)


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
    """Runs the command line. Whatever ends it, it says so in a line or two and with an exit code of its own: an error
    that the user can act on with its hint, anything else as a defect of serve-eval (4, never the 1 of a FAIL)."""
    if sys.platform == "win32":
        sys.exit("serve-eval runs on Linux and macOS. On Windows, use it inside WSL.")
    prepare_streams()
    try:
        app()
    except ServeEvalError as error:
        say(f"error: {error}", error.hint)
        sys.exit(error.exit_code)
    except Exception as error:
        if os.environ.get("SERVE_EVAL_TRACEBACK"):
            raise
        from serve_eval.origins import defect

        say(f"error: unexpected {type(error).__name__}: {error}", defect(error))
        sys.exit(4)
