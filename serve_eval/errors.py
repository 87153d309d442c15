"""Errors that stop a run, all but one of them one level deep. A bad sample is never raised: it is a
`Failure`.

ServeEvalError
├── PlanError          the plan, a flag or an option is wrong              exit 2
├── DatasetError       a data set is missing, incomplete or changed        exit 2
├── ReferenceFileError a reference file is malformed                       exit 2
├── RunFolderError     the run folder is locked or holds another run       exit 2
├── SandboxError       generated code must not or cannot be run here       exit 2
├── NotComparableError no reference, or one taken under another protocol   exit 3
├── LaunchError        a server could not be started or ended by itself    exit 4
│   └── NoRoomError    its GPUs are not there or taken                     exit 4
├── EndpointError      the endpoint is unreachable or refuses everything   exit 4
└── JournalError       records can no longer be written (disk full)        exit 4
"""

from __future__ import annotations


def install_hint(extra: str) -> str:
    """What to do when the packages of an optional extra are missing."""
    packages = f"pip install 'serve-eval[{extra}]', in a checkout pip install '.[{extra}]'"
    return f"Install the optional extra {extra}: {packages}."


class ServeEvalError(Exception):
    """Something the user can act on: `str()` is what happened, `hint` is what to do about it."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class PlanError(ServeEvalError):
    """The plan is wrong. Every problem that was found is one entry of `problems`."""

    def __init__(self, problems: str | list[str], *, hint: str = "") -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems), hint=hint)


class DatasetError(ServeEvalError):
    """A data set is missing, incomplete or not in the expected form."""


class ReferenceFileError(ServeEvalError):
    """A reference file cannot be trusted: names the file, the model and the line."""


class RunFolderError(ServeEvalError):
    """The run folder is used by another process, or belongs to another plan."""


class SandboxError(ServeEvalError):
    """Code that a model wrote was to be run, and that is not allowed, or cannot be done safely on
    this machine.
    """


class NotComparableError(ServeEvalError):
    """There is no reference to compare with, or its protocol differs from the run's."""

    exit_code = 3


class LaunchError(ServeEvalError):
    """A server could not be started, or ended while it was needed."""

    exit_code = 4


class NoRoomError(LaunchError):
    """The GPUs that a server needs are not there, or another launch has them."""


class EndpointError(ServeEvalError):
    """The endpoint as a whole cannot be evaluated: unreachable, wrong address, refuses
    everything.
    """

    exit_code = 4


class JournalError(ServeEvalError):
    """A record could not be written. What was written before is intact."""

    exit_code = 4
