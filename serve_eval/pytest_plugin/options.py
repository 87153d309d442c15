"""Declare and read the options of the plug-in: flags, and keys of pytest's ini file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

MARKER, PREFIX = "serve_eval", "serve_eval_"
FIXTURES = frozenset({"serve_eval", "serve_eval_endpoint", "serve_eval_server"})
"""A test that uses one of these, or whose marker names a task, is a test of accuracy."""
_OWN_REQUESTS = FIXTURES - {"serve_eval"}
"""Fixtures of tests that send requests of their own."""
NO_ADDRESS = (
    "no address: --serve-eval-base-url is not given, none of SERVE_EVAL_BASE_URL, OPENAI_BASE_URL"
    " and serve_eval_base_url of the ini file is set, and no launcher is named"
)
USED_ADDRESS = pytest.StashKey[bool]()
"""Set for a test that asks the address of the options."""
REHEARSES = pytest.StashKey[bool]()
"""Set for a test whose endpoint is the stand-in of a rehearsal."""
_HELP = {
    "base_url": ("URL", "endpoint of tests without a launcher (also SERVE_EVAL_BASE_URL)"),
    "output": ("DIR", "keep the run folders here, one per test and time"),
    "plan": ("FILE", "plan with the defaults of all tests, such as dataset_root"),
    "waivers": ("FILE", "waived tests, in the form of TensorRT-LLM's waives.txt"),
    "notify": ("FILE", "write one line at the end, for chat: the worst test and all counts"),
    "max_detects": (
        "POINTS",
        "a test that passed does not decide if it detects only drops of more points",
    ),
    "strict": (
        "",
        "fail tests that do not decide, and make those without an address errors, instead of"
        " skipping them",
    ),
    "rehearse": (
        "",
        "start a stand-in for trtllm-serve in place of the servers of all tests; nothing is judged",
    ),
}
_FLAGS_ONLY = ("rehearse",)
"""Options without an ini key, where they would be forgotten."""


class PluginOptions(NamedTuple):
    """The options of the plug-in. Paths are absolute.

    Those in tests and in plans are relative to `root`, the rootdir of pytest.
    """

    base_url: str | None = None
    output: Path | None = None
    plan: Path | None = None
    waivers: Path | None = None
    notify: Path | None = None
    strict: bool = False
    max_detects: float | None = None
    rehearse: bool = False
    root: Path = Path()


def is_accuracy_test(item: pytest.Item) -> bool:
    """Return True if a test uses a fixture of the plug-in, or its markers name a task."""
    used = not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    return used or _names_task(item.iter_markers(MARKER))


def asks_to_measure(item: pytest.Item) -> bool:
    """Return True if a test should call `evaluate` or `compare`.

    One with an endpoint or a server may send its own requests instead, unless it names `serve_eval`
    among its arguments, or a task in a marker of its own.
    """
    names = set(getattr(item, "fixturenames", ()))
    if _OWN_REQUESTS.isdisjoint(names):
        return is_accuracy_test(item)
    named = getattr(getattr(item, "_fixtureinfo", None), "argnames", ())
    own = [mark for mark in item.own_markers if mark.name == MARKER]
    return "serve_eval" in named or _names_task(own)


def _names_task(marks: Iterable[pytest.Mark]) -> bool:
    return any(mark.args or mark.kwargs.get("tasks") for mark in marks)


def add_options(parser: pytest.Parser) -> None:
    """Add the flags in a group of their own, and the ini keys of the same names."""
    group = parser.getgroup("serve-eval", "accuracy of LLM endpoints (serve-eval)")
    for name, (metavar, told) in _HELP.items():
        flag, dest = f"--serve-eval-{name.replace('_', '-')}", PREFIX + name
        if metavar:
            group.addoption(flag, dest=dest, metavar=metavar, default=None, help=told)
        else:
            group.addoption(flag, dest=dest, action="store_true", default=False, help=told)
        kind: Literal["string", "bool"] = "string" if metavar else "bool"
        if name in _FLAGS_ONLY:
            continue
        parser.addini(dest, f"see {flag}", type=kind, default=None)


def read_options(config: pytest.Config) -> PluginOptions:
    """Return the options: flags, then variables, then the ini file.

    Paths of flags are relative to the working directory, those of the ini file to its folder.
    """
    base_url = (
        config.getoption(f"{PREFIX}base_url")
        or os.environ.get("SERVE_EVAL_BASE_URL")
        or config.getini(f"{PREFIX}base_url")
        or os.environ.get("OPENAI_BASE_URL")
    )
    return PluginOptions(
        base_url=base_url or None,
        output=_read_path(config, "output"),
        plan=_read_path(config, "plan"),
        waivers=_read_path(config, "waivers"),
        notify=_read_path(config, "notify"),
        strict=bool(config.getoption(f"{PREFIX}strict") or config.getini(f"{PREFIX}strict")),
        max_detects=_read_points(config, "max_detects"),
        rehearse=bool(config.getoption(f"{PREFIX}rehearse")),
        root=config.rootpath,
    )


def _read_points(config: pytest.Config, name: str) -> float | None:
    """Return a number of points. Raises UsageError for what is none."""
    given = config.getoption(PREFIX + name) or config.getini(PREFIX + name)
    if not given:
        return None
    try:
        points = float(given)
    except ValueError:
        points = 0.0
    if not 0.0 < points < float("inf"):
        raise pytest.UsageError(f"{PREFIX}{name}: {given}: expected a number of points above 0")
    return points


def _read_path(config: pytest.Config, name: str) -> Path | None:
    if given := config.getoption(PREFIX + name):
        return config.invocation_params.dir / Path(given).expanduser()
    if given := config.getini(PREFIX + name):
        folder = config.rootpath if config.inipath is None else config.inipath.parent
        return folder / Path(given).expanduser()
    return None
