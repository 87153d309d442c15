"""Tell what is wrong with the words of a command line, and what to type instead."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any, NamedTuple

import serve_eval
from serve_eval.cli._options import EVERYTHING
from serve_eval.cli._wrong_lines import OTHER_OPTIONS

PLAINER = (
    (re.compile(r"^No such command "), "there is no command "),
    (re.compile(r"^Missing (option|argument) "), r"required: the \1 "),
    (re.compile(r"^Got unexpected extra arguments? \((.*)\)$"), r"unexpected: \1"),
    (re.compile(r"^Option (\S+) requires an argument$"), r"the option \1 needs a value"),
    (re.compile(r"^Invalid value for (.*?): "), r"\1: "),
)
"""Phrases of typer's messages, and plainer ones."""


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
