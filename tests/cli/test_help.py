"""Check `--help` of each command: its width, its options and examples that are commands."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from serve_eval.cli._commands import COMMANDS, Family, find_entry, walk
from serve_eval.cli.app import make_command
from tests.cli.command import serve_eval

ALONE = [" ".join(words) for words, _ in walk()]
LONG = [name for name in ALONE if make_command(*name.split()).usual]
OF_GROUPS = ("", "data cases", *(name for name, one in COMMANDS.items() if isinstance(one, Family)))
PATHS = [*OF_GROUPS, *ALONE]


def _flags(text: str) -> set[str]:
    """Return the flags of the lines that describe options."""
    typed = re.findall(r"^(?:  -\w,|   {3}) (--.*?)(?:  .*)?$", text, re.MULTILINE)
    return {word.strip(",") for line in typed for word in line.split() if word.startswith("--")}


def test_the_commands_with_many_options_are_those_that_have_a_short_help() -> None:
    many = [name for name in ALONE if sum(not one.hidden for one in _options(name)) > 17]
    assert sorted(many) == sorted(LONG)


def _options(name: str) -> list[Any]:
    return [one for one in make_command(*name.split()).params if one.param_type_name == "option"]


@pytest.mark.parametrize("name", ALONE)
def test_help_fits_a_terminal_and_shows_no_type_of_a_flag(name: str) -> None:
    for flag in ["--help", *(["--help-all"] if name in LONG else [])]:
        said = serve_eval(*name.split(), flag, COLUMNS="80").stdout
        assert max(map(len, said.splitlines())) <= 80
        assert not re.search(r"<(bool|str|int|float|path|list)", said)


@pytest.mark.parametrize("name", LONG)
def test_the_short_help_shows_few_options_and_where_the_rest_is(name: str) -> None:
    short = serve_eval(*name.split(), "--help").stdout
    assert 10 <= len(make_command(*name.split()).usual) <= 16
    assert short.splitlines()[-1].endswith(f"{name} --help-all")
    every = serve_eval(*name.split(), "--help-all").stdout
    known = {
        flag
        for one in _options(name)
        if not one.hidden
        for flag in (*one.opts, *one.secondary_opts)
    }
    assert _flags(every) == {flag for flag in known if flag.startswith("--")} | {"--help"}
    assert _flags(short) < _flags(every)


@pytest.mark.parametrize("path", PATHS)
def test_every_help_has_two_examples_that_are_understood(path: str) -> None:
    """Each example is parsed as its command would parse it, and nothing runs."""
    said = serve_eval(*path.split(), "--help", COLUMNS="80").stdout
    assert max(map(len, said.splitlines())) <= 80
    block = re.search(r"^Examples:\n((?:  .*\n)+)", said, re.MULTILINE)
    assert block, said
    texts, lines = block[1].splitlines()[::2], block[1].splitlines()[1::2]
    assert 2 <= len(lines) <= 5
    assert all(re.fullmatch(r"  [A-Z].*:", text) for text in texts)
    assert all(
        line.startswith(f"    serve-eval {path}".rstrip()) or path in OF_GROUPS for line in lines
    )
    for line in lines:
        _parse(shlex.split(re.split(r" [|>] ", line)[0])[1:])


def _parse(words: list[str]) -> None:
    """Parse a command line by its command. Raises click's UsageError if it is not understood."""
    count = next(
        n for n in range(1, len(words) + 1) if not isinstance(find_entry(words[:n]), Family)
    )
    make_command(*words[:count]).make_context(words[count - 1], words[count:]).close()


def test_an_example_with_a_wrong_option_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        _parse(["data", "fetch", "gsm8k", "--into", "DIR"])


def test_what_is_hidden_is_shown_nowhere() -> None:
    for name in ("run", "compare", "smoke", "watch"):
        assert "--api-key " not in serve_eval(*name.split(), "--help-all").stdout
    assert "--invariants" not in serve_eval("compare", "--help-all").stdout


def test_a_structure_gets_flags_variables_and_repeated_options() -> None:
    """--resume excludes -o, from the command line and from the environment.

    A list takes one value per line of its variable.
    """
    refused = serve_eval("run", "--resume", "x", "-o", "y")
    assert refused.returncode == 2
    assert "do not give a plan file or -o" in refused.stderr
    known = serve_eval("run", "--dry-run", SERVE_EVAL_TASKS="gsmk\nmlu", SERVE_EVAL_LIMIT="0")
    for text in ("unknown task 'gsmk'", "unknown task 'mlu'", "limit: must be 1 or more"):
        assert text in known.stderr


def test_defaults_are_told_and_no_sentence_of_a_group_is_cut_off() -> None:
    said = serve_eval("references", "power", "--help").stdout
    assert "Probability of detecting that drop (default 0.8)." in said
    assert "(default None)" not in said
    group = serve_eval("references", "--help", COLUMNS="80").stdout
    assert "..." not in group.partition("Commands:")[2]
