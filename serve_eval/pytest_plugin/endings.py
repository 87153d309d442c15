"""The ways in which a test of accuracy ends, and hints in the words of a test.

pytest shows the text of these exceptions without a traceback, and their name as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from serve_eval.plugins.setting import Declared


class AccuracyWarning(UserWarning):
    """A warning about a test that passed, or about a waiver. Filters can name it."""


class AccuracyEnding(pytest.fail.Exception):  # type: ignore[misc,name-defined]
    """An end of a test with a text that explains itself."""

    __module__ = "builtins"

    def __init__(self, text: str) -> None:
        super().__init__(text, pytrace=False)
        self.line = text.partition("\n")[0]


class AccuracyRegression(AccuracyEnding):
    """The endpoint answers worse than its reference: the test FAILED."""

    __module__ = "builtins"


class AccuracyNotMeasured(AccuracyEnding):
    """Nothing was measured, because of the endpoint or the plan: an ERROR, never a regression."""

    __module__ = "builtins"


class AccuracyUndecided(AccuracyEnding):
    """The run did not decide, and --serve-eval-strict makes that a failure."""

    __module__ = "builtins"


def show_ending(report: pytest.TestReport, call: pytest.CallInfo[None], *, rehearses: bool) -> None:
    """Give a report the first line as its message; what measured nothing becomes an error.

    pytest has errors only outside the body of a test. Its terminal, its JUnit file and other
    consumers know the phase alone, so the evaluation counts as part of the set-up. Without a line,
    the whole text would be the message in the list of failures and the JUnit file. The message of a
    test that `rehearses` says so first.
    """
    if call.excinfo is None:
        return
    ending, crash = call.excinfo.value, getattr(report.longrepr, "reprcrash", None)
    if crash is not None and isinstance(ending, AccuracyEnding):
        crash.message = ending.line
    if crash is not None and rehearses:
        from serve_eval.schema import REHEARSED

        said = crash.message.removeprefix(f"{REHEARSED}: ")
        crash.message = f"{REHEARSED}: {said}"
    if isinstance(ending, AccuracyNotMeasured):
        report.when = "setup"


_COMMAND = re.compile(r"serve-eval [a-z]")
_SET = re.compile(r"--set (?:(\w+)\.)?(\w+)=('[^']*'|\[[^\]]*\]|[\w./+-]*\w)")
_FLAG = re.compile(
    r"(?<![\w-])--(?P<flag>[a-z][a-z-]*)"
    r"(?:[ =](?P<value>'[^']*'|(?!(?:and|or|in|to|with|if|sets|allows)\b)[\w./+-]*\w))?"
)
"""A flag, with the word behind it unless that goes on with the sentence."""
_OF_PYTEST = {
    "strict": "--serve-eval-strict",
    "max-detects": "--serve-eval-max-detects",
    "output": "--serve-eval-output",
    "self": "ask_twice=",
    "rehearse": "rehearse=True",
    "show-flips": "show_flips=",
    "one-after-the-other": "one_after_the_other=True",
}
"""Flags of commands that are options of the plug-in, or of `compare`."""
_SENTENCES = {
    "pass --trust-plan": "name a copy of its plan, in a file of your own",
    "values with flags": "values with options of the test",
}
"""Advice about plans and folders, which a test gives otherwise."""
_RESUME = re.compile(r"(?<![\w-])([Rr])esume(?: the run)?(?= (?:with|once)\b|[.,:;]|$)")
"""Advice to go on with a run. A test begins another one."""
_OWN = {"model": "model_name", "sampling_seed": "sampling_seed"}
"""Keywords that differ from the key of a plan."""
_THEN = ", then "
"""The sentence goes on behind a command."""
_TAKE = "serve-eval references take "
_FOUND = (
    '  Then references_dir="{}", a path below pytest\'s rootdir, finds it: an option of evaluate(),'
    " the marker or OPTIONS."
)


def say_for_tests(text: str) -> str:
    """Return a hint in which flags are keywords of `evaluate`; commands to copy stay as they are.

    Below a command that takes a reference stands how a test finds it.
    """
    lines = []
    for line in text.splitlines():
        command = _COMMAND.search(line)
        start = len(line) if command is None else command.start()
        end = line.find(_THEN, start)
        end = len(line) if end < 0 else end
        lines.append(_translate(line[:start]) + line[start:end] + _translate(line[end:]))
        if _TAKE in line:
            folder = re.search(r"--references-dir (\S+)", line)
            lines.append(_FOUND.format("my-references" if folder is None else folder[1]))
    return "\n".join(lines)


def _translate(text: str) -> str:
    """Return a text without commands, with keywords in place of the flags that have one."""
    kinds = dict(_list_flags())

    def name(found: re.Match[str]) -> str:
        flag, value = found["flag"], found["value"]
        if flag == "tasks":
            return f'evaluate("{value}")' if value else "the tasks of evaluate()"
        if flag in _OF_PYTEST:
            return _OF_PYTEST[flag] + (f" {value}" if value and flag != "self" else "")
        positive = flag.removeprefix("no-")
        if flag not in kinds and positive in kinds and kinds[positive][1] is bool:
            return f"{kinds[positive][0]}=False{found[0][len(flag) + 2 :]}"
        if flag not in kinds:
            return found[0]
        key, kind = kinds[flag]
        if kind is bool:
            return f"{key}=True{found[0][len(flag) + 2 :]}"
        if value is None:
            return f"{key}="
        said = _write_python(value)
        return f"{key}=[{said}]" if kind is list else f"{key}={said}"

    text = _RESUME.sub(lambda found: f"{'R' if found[1] == 'R' else 'r'}un the test again", text)
    for said, ours in _SENTENCES.items():
        text = text.replace(said, ours)
    return _FLAG.sub(name, _SET.sub(_name_option, text))


def _name_option(found: re.Match[str]) -> str:
    """Return how a test sets what `--set` sets: a key of a plan, or an option of its parts."""
    owner, option, text = found.groups()
    value = _write_python(text)
    place = option if owner is None else f"{owner}.{option}"
    if (known := _list_places().get(place)) is not None:
        key, of_list = known
        return f"{key}=[{value}]" if of_list and value[:1] != "[" else f"{key}={value}"
    if owner is None:
        return found[0]
    if owner == "launcher":
        return f'launcher_options={{"{option}": {value}}}'
    if owner == "verdict":
        return f'verdict={{"name": NAME, "{option}": {value}}}'
    return f'{{"{owner}": {{"{option}": {value}}}}} as the task'


def _write_python(text: str) -> str:
    """Return the value of an option as Python writes it. Names of values in capitals stay."""
    bare = text.strip("'")
    known = {"true": "True", "false": "False", "null": "None"}
    if bare in known:
        return known[bare]
    number = re.fullmatch(r"-?\d+(\.\d+)?", bare)
    return bare if bare.isupper() or number or bare[:1] in "[{" else f'"{bare}"'


def _list_places() -> Mapping[str, tuple[str, bool]]:
    """Return what tests call each key of a plan, such as limits.order, and if it is a list."""
    from serve_eval.plan.options import ProtocolOptions, keys_in_file
    from serve_eval.plugins.setting import list_declared

    options = (*list_declared(ProtocolOptions), *(one for _, one in keys_in_file()))
    return {one.place: (_name_keyword(one), one.repeated) for one in options}


def _name_keyword(option: Declared) -> str:
    return _OWN.get(option.name, option.key.rpartition(".")[2])


def _list_flags() -> Iterator[tuple[str, tuple[str, type]]]:
    """Yield each flag with a keyword in tests: the keyword, and if it is a switch or a list."""
    import typing

    from serve_eval.plan.options import ProtocolOptions, keys_in_file
    from serve_eval.plugins.setting import list_declared

    for option in (*list_declared(ProtocolOptions), *(one for _, one in keys_in_file())):
        kinds = (option.kind, *typing.get_args(option.kind))
        kind = next((one for one in (bool, list) if one in kinds or option.repeated), str)
        for flag in option.flags:
            long = flag.partition("/")[0].removeprefix("--")
            yield long, (_name_keyword(option), list if option.repeated else kind)
