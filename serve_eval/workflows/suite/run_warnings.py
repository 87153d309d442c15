"""List the warnings of the runs of a suite, each once with the runs that it is about. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from serve_eval.schema import SuiteReport

_LAUNCHED = re.compile(r".*?: (the reference was taken at .*); this run is at (.*)", re.DOTALL)
"""The warning about a reference of a server that was launched otherwise, after its task."""


def list_run_warnings(report: SuiteReport) -> Iterator[str]:
    """Yield each warning with its runs; all runs that differ from one reference share one."""
    launched: dict[str, dict[str, str]] = {}
    others: dict[str, dict[str, None]] = {}
    for run in report.runs:
        for warning in run.warnings:
            if found := _LAUNCHED.fullmatch(warning):
                launched.setdefault(found[1], {})[run.name] = found[2]
            else:
                others.setdefault(warning, {})[run.name] = None
    for taken, runs in launched.items():
        named = ", ".join(f"{name} ({at})" for name, at in runs.items())
        yield f"{taken}; launched otherwise: {named}"
    yield from (f"{', '.join(runs)}: {warning}" for warning, runs in others.items())
