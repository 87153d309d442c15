"""Say what is wrong with a command line, and find the command that answers a question."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import serve_eval
from serve_eval.cli._commands import CommandEntry, walk
from serve_eval.cli._options import EVERYTHING

URL = "http://HOST:8000"
PLAINER = (
    (re.compile(r"^No such command "), "there is no command "),
    (re.compile(r"^Missing (option|argument) "), r"required: the \1 "),
    (re.compile(r"^Got unexpected extra arguments? \((.*)\)$"), r"unexpected: \1"),
    (re.compile(r"^Option (\S+) requires an argument$"), r"the option \1 needs a value"),
    (re.compile(r"^Invalid value for (.*?): "), r"\1: "),
)
"""Phrases of typer's messages, and plainer ones."""
OTHER_OPTIONS: Mapping[str, str] = {
    "--model-args": f"--base-url {URL} --model NAME",
    "--num-concurrent": "--concurrency N",
    "--max-concurrency": "--concurrency N",
    "--parallelism": "--concurrency N",
    "--batch-size": "--concurrency N",
    "--num-prompts": "--limit N",
    "--num-examples": "--limit N",
    "--endpoint": f"--base-url {URL}",
    "--url": f"--base-url {URL}",
    "--target": f"--base-url {URL}",
    "--host": f"--base-url {URL}",
    "--port": f"--base-url {URL}",
    "--server": f"--base-url {URL}",
    "--gen-kwargs": "--temperature T --max-tokens N",
    "--output-path": "-o DIR",
    "--log-samples": "serve-eval show RUN (every sample is kept)",
    "--system-instruction": "--set TASK.system_prompt=TEXT",
    "--task": "--tasks NAME",
    "--dataset": "--tasks NAME",
    "--backend": "--launcher NAME",
    "--threshold": "--margin POINTS",
    "--baseline": "serve-eval compare A B",
    "--num-gpus": "--set launcher.tp=N",
    "--tp": "--set launcher.tp=N",
    "--tp-size": "--set launcher.tp=N",
    "--shots": "--num-fewshot N",
    "--run-all": "--rerun all",
    "--n-samples": "--limit N",
    "--config": "serve-eval run PLAN.yaml",
    "--verbosity": "-v",
}
"""Options of other tools on a command that lacks them, and what to write."""


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE})
_OF_PATHS = _FULL | {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENXIO, errno.EXDEV, errno.EBUSY),
    *(errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ETXTBSY, errno.EMLINK, errno.ENODEV),
}
"""Errors about a path that a user can mend: the path, its permissions, its disk."""


class FileProblem(NamedTuple):
    """A problem with a file of the user: what is wrong, what to do, and the exit code."""

    message: str
    hint: str
    exit_code: int


def describe_file(error: Exception) -> FileProblem | None:
    """Return what is wrong with a path of the user that a command could not use, else None.

    Files of this package are none of the user's.
    """
    if isinstance(error, ValueError) and "embedded null" in str(error):
        return FileProblem(
            "a path holds a null character", "Check the paths of the command and its plan.", 2
        )
    if not isinstance(error, OSError) or error.errno not in _OF_PATHS or error.filename is None:
        return None
    path = str(error.filename)
    if Path(serve_eval.__file__).parent in Path(path).absolute().parents:
        return None
    if error.errno in _FULL:
        return FileProblem(f"{path}: {error.strerror}", "Free disk space, or use another disk.", 4)
    return FileProblem(
        f"{path}: {error.strerror}", "Check that path: its name, its kind, its permissions.", 2
    )


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
        if (other := OTHER_OPTIONS.get(name.replace("_", "-"))) is not None:
            message = f"there is no option {name}: write {other}"
        if option := _find_task_option(ctx, name):
            message = f"there is no option {name}: set it for a task, --set TASK.{option}=VALUE"
    for pattern, plain in PLAINER:
        message = pattern.sub(plain, message)
    help_flag = EVERYTHING if getattr(getattr(ctx, "command", None), "usual", ()) else "--help"
    of = path.partition(" ")[2]
    return (
        f"{of}: {message}" if of else message,
        f"See {path} {help_flag}",
    )


def _find_task_option(ctx: Any, name: str) -> str:
    """Return the option of tasks that a flag of `run` means; "" if the command cannot set it."""
    from serve_eval.plan.options import SAMPLING_SEED, list_protocol_fields

    known = [flag for one in getattr(ctx.command, "params", ()) for flag in one.opts]
    option = name.lstrip("-").replace("-", "_")
    option = "seed" if option == SAMPLING_SEED else option
    own = (*list_protocol_fields(), "num_samples")
    return option if "--set" in known and option in own else ""


def _suggest(name: str, possibilities: Any) -> str:
    from serve_eval.plugins.registry import find_closest

    close = find_closest(name, possibilities or ())
    return f". Did you mean {close[0]}?" if close else ""


MOST = 5
"""Most commands that an answer names."""
LEAST_SHARE = 0.5
"""Least share of the words of a question that a command must have."""
CLOSE = 0.75
"""Least share of the best fit that another command must reach."""
_IN_TITLE, _IN_LINE = 1.0, 0.8
"""Weights of a word by where it stands: the titles say what users ask."""
_FILLING = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "at",
        "be",
        "can",
        "do",
        "does",
        "for",
        "from",
        "how",
        "i",
        "in",
        "is",
        "it",
        "its",
        "my",
        "of",
        "on",
        "or",
        "our",
        "so",
        "than",
        "that",
        "the",
        "there",
        "this",
        "to",
        "too",
        "was",
        "what",
        "when",
        "where",
        "which",
        "who",
        "why",
        "with",
        "me",
        "get",
    ]
)


class FoundCommand(NamedTuple):
    """A command that answers a question: its words, its line of help, and how well it fits."""

    command: str
    line: str
    share: float


def answer_question(question: str) -> str:
    """Return lines that name the commands which answer a question.

    Raises PlanError if none does.
    """
    found = find_commands(question)
    if not found:
        from serve_eval.errors import PlanError

        raise PlanError(
            f"no help is about {question!r}", hint="serve-eval --help lists the commands."
        )
    return "\n".join([f"Commands for {question!r}:", "", *list_commands(found)])


def list_commands(found: Iterable[FoundCommand]) -> list[str]:
    """Return a line for each command, as help shows it."""
    rows = [(f"serve-eval {one.command}", one.line) for one in found]
    width = max(len(name) for name, _ in rows)
    return [f"  {name.ljust(width)}  {line}" for name, line in rows]


def find_commands(question: str) -> list[FoundCommand]:
    """Return the commands that answer a question, the best one first.

    A command fits by the share of the question's words, without those that fill a sentence, that
    stand in one of its titles, or in its name and its line of help.
    """
    asked = _stems(question)
    if not asked:
        return []
    found = [
        FoundCommand(" ".join(words), entry.line, _fit(asked, words, entry))
        for words, entry in walk()
    ]
    best = max((one.share for one in found), default=0.0)
    least = max(LEAST_SHARE, CLOSE * best)
    good = [one for one in found if one.share >= least]
    return sorted(good, key=lambda one: -one.share)[:MOST]


def _fit(asked: frozenset[str], words: Sequence[str], entry: CommandEntry) -> float:
    line = _stems(f"{' '.join(words)} {entry.line}")

    def share(title: str) -> float:
        stems = _stems(title)
        held = len(asked & stems) + _IN_LINE * len((asked - stems) & line)
        whole = len(stems) if stems and stems <= asked else 0
        return (_IN_TITLE * held) / len(asked) + 0.01 * whole

    return max(map(share, (*entry.titles, "")))


def _stems(text: str) -> frozenset[str]:
    """Return the words of a text that matter, without the endings of their forms."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return frozenset(_stem(word) for word in words if word not in _FILLING)


def _stem(word: str) -> str:
    for ending in ("ations", "ation", "ions", "ies", "ing", "ers", "ed", "es", "er", "s", "y", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word.removesuffix(ending)
    return word
