"""Name deployments, so that two runs that want the same servers find each other.

The name depends on the launcher, its options, the files they name, and the model.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path

import msgspec

from serve_eval.errors import PlanError
from serve_eval.evaluation.endpoint.launch import check_launcher
from serve_eval.plugins import extensions
from serve_eval.plugins.values import load_launcher
from serve_eval.protocol.fingerprint import canonical
from serve_eval.schema import Plan

UNHELD = {
    "external": "it starts no server",
    "kubernetes": "it starts no server",
    "simulated": "its server only knows the answers to the questions of one run",
}
"""Launchers whose endpoints cannot be held, and why."""
WAITING = ("ready_timeout_s", "answer_timeout_s", "stop_timeout_s")
"""Options that set how long to wait for servers, but not what they serve."""
TEXT_BYTES = 1024 * 1024
"""Longest file, in bytes, that is read for the id."""
ID_CHARS = 8


def identity(plan: Plan) -> str:
    """Return the id of what is served.

    It covers the launcher, its options with the content of paths in them, and the model.
    """
    launcher = load_launcher(plan.launcher.name)
    given = launcher.check_options(plan.launcher.options)
    options = {name: option.default for name, option in launcher.options.items()} | given
    loaded = options.pop("model", None) or plan.model
    served = {
        name: _convert_structure(value) for name, value in options.items() if name not in WAITING
    }
    content = {
        "launcher": plan.launcher.name,
        "options": _with_files(msgspec.to_builtins(served)),
        "model": plan.model or loaded,
        "loaded": str(Path(str(loaded)).resolve()) if Path(str(loaded)).is_dir() else loaded,
    }
    if (code := extensions.list_loaded().get(f"launchers.{plan.launcher.name}")) is not None:
        content["code"] = code.sha256
    return hashlib.sha256(canonical(content).encode()).hexdigest()[:ID_CHARS]


def _convert_structure(value: object) -> object:
    """Return a structure as a mapping with all of its fields.

    msgspec omits a default that it did not have to set when it made the structure.
    """
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _with_files(options: object, name: str = "") -> object:
    """Return options with the content behind the paths in them.

    That is the hash of a file, since another text serves something else; the full path of a folder;
    and path, size and time of a file that is too long to read, such as a program.
    """
    if isinstance(options, Mapping):
        return {key: _with_files(value, str(key)) for key, value in options.items()}
    if isinstance(options, list):
        return [_with_files(value, name) for value in options]
    if not isinstance(options, str):
        return options
    if name == "command":
        with suppress(ValueError):  # Reported where the command is checked.
            return [_behind(word) for word in shlex.split(options)]
    return _behind(options)


def _behind(word: str) -> object:
    """Return a word of an option or a command line, or the content of the path that it names.

    The path may follow `--flag=`.
    """
    before, equals, after = word.partition("=") if word.startswith("-") else ("", "", word)
    if not after:
        return word
    try:
        path = Path(after).expanduser()
        if path.is_dir():
            return [before, equals, str(path.resolve())]
        if not path.is_file():
            return word
        state = path.stat()
        if state.st_size > TEXT_BYTES:
            return [before, equals, str(path.resolve()), state.st_size, state.st_mtime_ns]
        return [before, equals, hashlib.sha256(path.read_bytes()).hexdigest()]
    except (OSError, ValueError, RuntimeError):
        return word


def check(plan: Plan) -> None:
    """Raise PlanError for servers that cannot be held or launched."""
    if why := UNHELD.get(plan.launcher.name):
        raise PlanError(
            f"launcher {plan.launcher.name}: {why}, so there is nothing to hold",
            hint="Give the launcher to the command that asks, as in serve-eval run --launcher"
            f" {plan.launcher.name}, or hold the toy model: serve-eval serve embedded --detach.",
        )
    check_launcher(plan)
