"""Errors that stop a run.

A bad sample is never raised: it becomes a `Failure`. All errors but one are direct subclasses of
ServeEvalError.

ServeEvalError
├── PlanError          the plan, a flag or an option is wrong              exit 2
├── WithheldCodeError  a saved plan's folder of code was not named again   exit 2
├── DatasetError       a data set is missing, incomplete or changed        exit 2
├── ReferenceFileError a reference file is malformed                       exit 2
├── RunFolderError     the run folder is locked or holds another run       exit 2
├── SandboxError       generated code must not or cannot be run here       exit 2
├── ExternalCodeError  a user's rule or scorer raised or returned junk     exit 4
├── NotComparableError no reference, or one taken under another protocol   exit 3
├── LaunchError        a server did not start, or ended unexpectedly       exit 4
│   ├── NoProgramError its executable is missing or misspelt               exit 2
│   └── NoRoomError    its GPUs are missing or in use                      exit 4
├── EndpointError      the endpoint is unreachable or refuses everything   exit 4
└── JournalError       records can no longer be written (disk full)        exit 4
"""

from __future__ import annotations


def install_hint(extra: str) -> str:
    """Return the hint for when the packages of an optional extra are missing."""
    return f"Install the optional extra {extra}: {install_command(extra)}"


def install_command(extra: str) -> str:
    """Return the command that installs an extra from where serve-eval itself was installed.

    That is a checkout, a wheel, an address, or the index of the user's pip, which records nothing.
    """
    import json
    from importlib import metadata
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    try:
        recorded = metadata.distribution("serve-eval").read_text("direct_url.json")
        source = json.loads(recorded or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        source = {}
    url, checkout = str(source.get("url", "")), Path(__file__).resolve().parents[1]
    if "dir_info" in source:
        edited = "-e " if source["dir_info"].get("editable") else ""
        return f"pip install {edited}'{unquote(urlsplit(url).path)}[{extra}]'"
    if url:
        return f"pip install 'serve-eval[{extra}] @ {url}'"
    if (checkout / "pyproject.toml").is_file():
        return f"pip install -e '{checkout}[{extra}]'"
    return f"pip install 'serve-eval[{extra}]'"


class ServeEvalError(Exception):
    """An error that the user can act on: `str()` says what happened, `hint` says what to do."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class PlanError(ServeEvalError):
    """The plan is wrong. `problems` has one entry per problem."""

    def __init__(self, problems: str | list[str], *, hint: str = "") -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems), hint=hint)


class SpentBudgetError(PlanError):
    """The tokens that a run may cost are fewer than one request of it may cost."""


class WithheldCodeError(ServeEvalError):
    """A saved plan needs code of a folder that this user has not named again."""


class DatasetError(ServeEvalError):
    """A data set is missing, incomplete or not in the expected form."""


class ReferenceFileError(ServeEvalError):
    """A reference file cannot be trusted. The message names the file, the model and the line."""


class RunFolderError(ServeEvalError):
    """The run folder is in use by another process, or belongs to another plan."""


class SandboxError(ServeEvalError):
    """Code written by a model must not, or cannot safely, run on this machine."""


class ExternalCodeError(ServeEvalError):
    """A function outside serve-eval failed on answers, which are kept and can be judged again."""

    exit_code = 4


class NotComparableError(ServeEvalError):
    """A task has no reference, or the reference's protocol differs from the run's."""

    exit_code = 3


class LaunchError(ServeEvalError):
    """A server did not start, or ended while it was needed."""

    exit_code = 4


class NoProgramError(LaunchError):
    """The executable of a server is not there: to try again would change nothing."""

    exit_code = 2

    def __init__(self, program: str) -> None:
        if "/" in program:
            why, hint = "does not exist", "Set launcher.command to the program's full path."
        else:
            why, hint = "is not on PATH", "Put it there, or set launcher.command to its full path."
        super().__init__(f"{program} {why}", hint=hint)


class NoRoomError(LaunchError):
    """The GPUs that a server needs are missing, or another launch uses them."""


class EndpointError(ServeEvalError):
    """The whole endpoint cannot be evaluated: unreachable, wrong address, or refuses everything."""

    exit_code = 4


class UnknownModelError(EndpointError):
    """The endpoint serves other models than the named one: to try again would change nothing."""


class ServerEndedError(EndpointError):
    """The server ended, or hangs, while requests were in flight."""


class JournalError(ServeEvalError):
    """A record could not be written. Earlier records are intact."""

    exit_code = 4
