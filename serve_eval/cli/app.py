"""Make the commands, and set up the parts that all of them share."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

import serve_eval
from serve_eval import pace
from serve_eval.cli._clear_values import convert_clear_values
from serve_eval.cli._commands import COMMANDS, GROUPS, Family, find_entry, walk
from serve_eval.cli._streams import LongSteps, emit, prepare_streams, reserve_stdout, say
from serve_eval.errors import ServeEvalError

HELP_FLAGS = ("-h", "--help")


class _Commands(TyperGroup):
    """A group that imports a command when it is called, and answers a wrong line.

    It lists its commands without rich, which takes half of the time of `--help`.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:  # click's types are private to typer
        self.rich_markup_mode = None
        super().format_help(ctx, formatter)

    def get_params(self, ctx: Any) -> Any:
        """Return the options, which convert clear values without pydantic."""
        return convert_clear_values(super().get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with one sentence, wrapped and not cut off, by groups."""
        known = find_entry(words) if (words := _words(ctx)) else None
        groups = {"Commands": known.commands} if isinstance(known, Family) else GROUPS
        width = max(len(name) for rows in groups.values() for name in rows)
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), one.line) for name, one in rows.items()])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        from serve_eval.cli._examples import find_examples, format_examples

        if examples := find_examples(ctx):
            formatter.write(f"\n{format_examples(examples)}\n")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        if not args:  # typer assumes that its own help, by rich, was printed
            typer.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        if args[0] == "--help-all":
            typer.echo(_list_every(ctx), nl=False)
            ctx.exit(0)
        if args[0] in HELP_FLAGS and len(args) > 1:
            typer.echo(_answer_help(ctx, args[1:]))
            ctx.exit(0)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: Any, args: list[str]
    ) -> Any:  # click's types are private to typer
        if args[0] not in self.commands and not args[0].startswith("-"):
            from serve_eval.cli._wrong_lines import answer

            raise answer(_words(ctx), args)
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else make_command(*_words(ctx), name), rest


def _list_every(ctx: Any) -> str:
    """Return a line for each command below a group, also below the groups in it."""
    words = _words(ctx)
    of = find_entry(words) if words else None
    known = of.commands if isinstance(of, Family) else COMMANDS
    formatter = ctx.make_formatter()
    with formatter.section("Commands"):
        formatter.write_dl([(" ".join(path), one.line) for path, one in walk(known, words)])
    formatter.write("\nAll options of one: serve-eval COMMAND --help-all\n")
    return str(formatter.getvalue())


def _answer_help(ctx: Any, asked: Sequence[str]) -> str:
    """Return the help of the command that words name, or the commands that answer them."""
    if find_entry([*_words(ctx), *asked]) is None:
        from serve_eval.cli._usage import answer_question

        return answer_question(" ".join(asked))
    for word in asked:
        made = make_command(*_words(ctx), word)
        ctx = made.make_context(word, [], parent=ctx, resilient_parsing=True)
    return str(ctx.get_help())


def _words(ctx: Any) -> tuple[str, ...]:
    """Return the words after `serve-eval` of the command of a context."""
    return tuple(ctx.command_path.split()[1:])


@functools.cache
def make_command(*words: str) -> Any:
    """Return the command that words after `serve-eval` name, with its options."""
    from serve_eval.cli._help import HelpedCommand
    from serve_eval.cli._options import Command

    entry = find_entry(words)
    assert entry is not None
    alone = typer.Typer(add_completion=False)
    if isinstance(entry, Family):
        alone.add_typer(_make_group(entry), name=words[-1])
        return typer.main.get_group(alone).commands[words[-1]]
    module, _, attribute = entry.place.partition(".")
    found = getattr(importlib.import_module(f"serve_eval.cli.{module}"), attribute)
    function = found.function if isinstance(found, Command) else found
    alone.command(words[-1], short_help=entry.line, cls=HelpedCommand)(function)
    alone.callback()(_stand_in)
    made = typer.main.get_group(alone).commands[words[-1]]
    assert isinstance(made, HelpedCommand)
    made.titles = entry.titles
    if isinstance(found, Command):
        made.usual, made.examples, made.own = found.usual, found.examples, found.own
    return _reserve_when_called(made)


def _make_group(family: Family, **more: Any) -> typer.Typer:
    """Return a group with the names of its commands, which are made when they are called."""
    group = typer.Typer(cls=_Commands, help=family.line, add_completion=False, **more)
    for name, one in family.commands.items():
        group.command(name, short_help=one.line)(_stand_in)
    group.callback()(_stand_in)
    return group


def _stand_in() -> None:
    """Stand for a command in the list."""


def _reserve_when_called(command: Any) -> Any:
    """Make a command reserve standard output when it is called, but not for its help."""
    if (call := command.callback) is not None:

        def call_reserved(*args: Any, **options: Any) -> Any:
            from serve_eval.plugins.scope import scope

            reserve_stdout()
            with scope():
                return call(*args, **options)

        command.callback = call_reserved
    return command


app = _make_group(
    Family("Check whether a running LLM endpoint still answers as well as it should.", COMMANDS),
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": list(HELP_FLAGS),
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
)


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
        storage = sys.modules.get("serve_eval.storage.command_folder")
        if storage is not None:
            storage.drop_empty_folders()
