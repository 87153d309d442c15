"""Refuse plans whose answers would not follow from the model, unless the user allows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from serve_eval.errors import PlanError
from serve_eval.protocol.meaningless import MeaninglessSetting, find_meaningless
from serve_eval.schema import Plan

HINT = (
    "Answers would not follow from the model, and no accuracy of them means anything: leave"
    " it out, or allow it with --set allow_meaningless=true (in a plan: allow_meaningless: true)."
)


def list_meaningless(plan: Plan) -> list[MeaninglessSetting]:
    """Return the settings of the launcher and of the requests, in the order of the plan.

    Config files that the launcher names are read; one that cannot be is the launcher's to report.
    """
    launcher = dict(plan.launcher.options)
    found = [*find_meaningless(launcher, "launcher"), *_find_in_files(launcher, "launcher")]
    for task in plan.tasks:
        body = {"extra_body": task.options.get("extra_body")}
        found += find_meaningless(body, task.name)
    return list(dict.fromkeys(found))


def _find_in_files(options: Mapping[str, object], place: str) -> Iterator[MeaninglessSetting]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _find_in_files(value, f"{place}.{name}")
        elif name == "config" and isinstance(value, str):
            yield from find_meaningless(_read(value), f"{place}.config {value}")


def _read(file: str) -> object:
    import yaml

    with suppress(OSError, UnicodeError, yaml.YAMLError):
        return yaml.safe_load(Path(file).expanduser().read_text(encoding="utf-8"))
    return None


def refuse_meaningless(plan: Plan) -> list[PlanError]:
    """Return an error that names the meaningless settings of a plan; none if it allows them."""
    if plan.allow_meaningless or not (found := list_meaningless(plan)):
        return []
    return [PlanError([str(one) for one in found], hint=HINT)]


def warn_of_meaningless(plan: Plan, told: Iterable[str]) -> Iterator[str]:
    """Yield a warning for the report of a run that may be meaningless, as its plan permits.

    `told` are the settings that running servers reported.
    """
    if found := dict.fromkeys([*map(str, list_meaningless(plan)), *told]):
        yield (
            "the answers do not follow from the model, so that no value here means anything:"
            f" {'; '.join(found)} (--set allow_meaningless=true)"
        )
