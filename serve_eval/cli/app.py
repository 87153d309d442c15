"""List the commands, and set up the parts that all of them share."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

import serve_eval
from serve_eval import pace
from serve_eval.cli._clear_values import convert_clear_values
from serve_eval.cli._streams import LongSteps, emit, prepare_streams, reserve_stdout, say
from serve_eval.errors import ServeEvalError

COMMANDS = {
    "run": ("run.run", "Evaluate an endpoint: PASS, FAIL or INCONCLUSIVE."),
    "compare": ("compare.compare", "Compare two endpoints: is B worse than A?"),
    "verify": ("verify.verify", "Check in seconds that this is still the same model."),
    "invariants": ("invariants.invariants", "Check that caching and batching change no answers."),
    "load": ("load.load", "Measure accuracy over the number of requests in flight."),
    "tools": ("tools.tools", "Check tool calls and guided decoding, streamed, under load."),
    "bisect": ("bisect.bisect", "Find the option or image that broke the accuracy."),
    "attribute": ("attribute.attribute", "Find the worker that gives wrong answers."),
    "smoke": ("smoke.smoke", "Check in seconds which features an endpoint has."),
    "watch": ("watch.watch", "Watch a production endpoint and raise alarms."),
    "show": ("show.show", "Show samples of a run: question, answer, score."),
    "diagnose": ("diagnose.diagnose", "Explain why a run is red and what to change."),
    "capsule": ("capsule.capsule", "Write a folder that replays one request of a run."),
    "suite": ("suite.suite", "Run many plans for one verdict."),
    "serve": ("serve.serve", "Start servers and keep them up for other clients."),
    "verdict": ("verdict.verdict", "Judge a finished run by another rule."),
    "rescore": ("rescore.rescore", "Score the answers of a run again."),
    "merge": ("merge.merge", "Join the shards of a run and judge them as one."),
    "export": (
        "export.export",
        "Write runs as a table, or in the file format of lm-eval or BioChatter.",
    ),
    "collect": ("collect.collect", "Write the results of runs and test logs as CSV."),
    "drift": ("drift.drift", "Chart the runs of many days to find a slow decline."),
    "view": ("view.view", "Show the runs of a folder in a browser, with trends."),
    "power": ("power.power", "Compute the drop that n samples can detect."),
    "list": ("listing.listing", "List tasks, launchers and verdict rules."),
    "init": ("init.init", "Ask an endpoint what it is, and write a starter plan."),
    "doctor": ("doctor.doctor", "Look at this machine: what works here, what is absent."),
    "schema": ("schema.schema", "Print the JSON Schema of plans, suites and reports."),
    "completion": ("completion.completion", "Print the script that completes commands in a shell."),
    "demo": ("demo.demo", "Judge a tiny real model, intact and damaged."),
    "references": ("references.app", "Show, check, register and import references."),
    "datasets": ("datasets.app", "List, fetch and verify data sets."),
    "cases": ("cases.app", "Write, list, encrypt and import your own cases."),
}
"""The module and function of each command, and its line in `--help`. Only the called command is
imported: importing all of them takes longer than the rest of `--help`."""


class _Group(TyperGroup):
    """A group that lists its commands without rich, which takes half of the time of `--help`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # click's types are private to typer
        self.rich_markup_mode = None
        super().format_help(ctx, formatter)

    def get_params(self, ctx: Any) -> Any:
        """Return the options, which convert clear values without pydantic."""
        return convert_clear_values(super().get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with one sentence, wrapped and not cut off."""
        rows = [
            (name, one.short_help or _sentence(one.help or ""))
            for name, one in self.commands.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        from serve_eval.cli._examples import find_examples, format_examples

        if examples := find_examples(ctx):
            formatter.write(f"\n{format_examples(examples)}\n")


def _sentence(text: str) -> str:
    """Return the first sentence of a docstring, without its full stop."""
    return " ".join(text.split("\n\n")[0].split()).partition(". ")[0].rstrip(".")


class _Commands(_Group):
    """The group that imports a command when it is called."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:  # typer assumes that its own help, by rich, was printed
            typer.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: Any, args: list[str]
    ) -> Any:  # click's types are private to typer
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else make_command(name), rest


@functools.cache
def make_command(name: str) -> Any:
    """Return a command with its options."""
    from serve_eval.cli._help import HelpedCommand
    from serve_eval.cli._options import Command

    place, short_help = COMMANDS[name]
    module, _, attribute = place.partition(".")
    found = getattr(importlib.import_module(f"serve_eval.cli.{module}"), attribute)
    alone = typer.Typer(add_completion=False)
    if isinstance(found, typer.Typer):
        for info in found.registered_commands:
            info.cls = HelpedCommand
        alone.add_typer(found, name=name, short_help=short_help, cls=_Group)
        return _reserve_when_called(typer.main.get_group(alone).commands[name])
    function = found.function if isinstance(found, Command) else found
    alone.command(name, short_help=short_help, cls=HelpedCommand)(function)
    made = typer.main.get_group(alone).commands[name]
    assert isinstance(made, HelpedCommand)
    if isinstance(found, Command):
        made.usual, made.examples = found.usual, found.examples
    return _reserve_when_called(made)


def _reserve_when_called(command: Any) -> Any:
    """Make a command reserve standard output when it is called, but not for its help."""
    for inner in getattr(command, "commands", {}).values():
        _reserve_when_called(inner)
    if (call := command.callback) is not None:

        def call_reserved(*args: Any, **options: Any) -> Any:
            from serve_eval.plugins.scope import scope

            reserve_stdout()
            with scope():
                return call(*args, **options)

        command.callback = call_reserved
    return command


app = typer.Typer(
    cls=_Commands,
    help="Check whether a running LLM endpoint still answers as well as it should.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
)


def _stand_in_list() -> None:
    """Stand for a command in the list."""


for _name, (_, _short_help) in COMMANDS.items():
    app.command(_name, short_help=_short_help)(_stand_in_list)


def _version(wanted: bool) -> None:
    if wanted:
        emit(f"serve-eval {serve_eval.__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Hold the options before a command."""


def _hide(text: str) -> str:
    """Return a message with what looks like a key replaced."""
    from serve_eval.masking import HIDDEN
    from serve_eval.secret_signs import hide

    return hide(text, HIDDEN)


def main(*, interrupted: Callable[[], bool] = lambda: False) -> None:
    """Run the command line, and end every error with a short message and an exit code.

    An error that the user can fix is shown with its hint. Any other error is reported as a defect
    of serve-eval (4, never the 1 of a FAIL). Errors that an interruption causes, such as the
    ImportError of a half-imported package, are raised unchanged.
    """
    if sys.platform == "win32":
        sys.exit("serve-eval runs on Linux and macOS. On Windows, use it inside WSL.")
    prepare_streams()
    try:
        with pace.notify_to(LongSteps()):
            sys.exit(app(prog_name="serve-eval", standalone_mode=False))
    except ServeEvalError as error:
        if interrupted():
            raise
        say(f"error: {_hide(str(error))}", _hide(error.hint))
        sys.exit(error.exit_code)
    except Exception as error:
        from serve_eval.cli._usage import describe_file, describe_usage, is_usage_error

        if is_usage_error(error):
            message, hint = describe_usage(error)
            say(f"error: {_hide(message)}", hint)
            sys.exit(2)
        if interrupted() or os.environ.get("SERVE_EVAL_TRACEBACK"):
            raise
        if told := describe_file(error):
            say(f"error: {_hide(told.message)}", told.hint)
            sys.exit(told.exit_code)
        from serve_eval.plugins.extensions import defect

        said = _hide(str(error))
        say(f"error: unexpected {type(error).__name__}: {said}", defect(error))
        sys.exit(4)
    finally:
        storage = sys.modules.get("serve_eval.evaluation.storage.default_folder")
        if storage is not None:
            storage.drop_empty_folders()
