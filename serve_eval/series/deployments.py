"""Say which deployment a run asked, so that no table merges two deployments of one model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from serve_eval.report.results_table.content import BEGAN, RUN
from serve_eval.schema import Endpoint, Plan, Report, TaskReport, file_stem
from serve_eval.storage.file_names import SUITE_RUNS
from serve_eval.verdicts.references import SPEC_KEYS
from serve_eval.verdicts.references.deployed import (
    LAUNCHER,
    list_launched,
    shorten,
    write_value,
)

ENDPOINT, SERVER, IMAGE = "endpoint", "server", "image"
SEED = "seed"
"""The field of a fingerprint with the sampling seed, which is JSON."""
_TIME = re.compile(
    r"(?:19|20)\d{2}[-_.]?[01]\d[-_.]?[0-3]\d"
    r"(?:[-_.T ]*[0-2]\d[-_.:h]?[0-5]\d(?:[-_.:]?[0-5]\d)?Z?)?"
)
"""A date, with or without a time of day."""
_SEED_NAME = re.compile(r"(?:sampling[-_. ]?)?seed", re.IGNORECASE)
_GAP = "-_. "
_USER = re.compile(r"//[^/?#]*@")
"""The name and the password of a URL, which no table needs."""


class Deployed(Protocol):
    """A run with its model and the attributes of its deployment."""

    @property
    def model(self) -> str: ...

    @property
    def attributes(self) -> Mapping[str, str]: ...


def describe_deployment(
    plan: Plan, endpoint: Endpoint | None, own: Mapping[str, object]
) -> dict[str, str]:
    """Return what is known of a deployment, by name, in the order in which tables show it.

    `own` are the user's words about it. The address counts only if no launcher chose it. An option
    of the launcher is named launcher.NAME.
    """
    spec = {key: str(value) for key in SPEC_KEYS if (value := getattr(plan.accuracy_spec, key))}
    if spec.get("dtype") == "auto":
        del spec["dtype"]
    launcher, *options = list_launched(plan).items()
    address = plan.launcher.options.get("base_url") if plan.launcher.name == "external" else None
    if plan.launcher.name == "external" and endpoint is not None:
        address = endpoint.base_url  # in one form, however it was given
    known = {
        **spec,
        launcher[0]: launcher[1],
        **({ENDPOINT: _USER.sub("//", str(address))} if address else {}),
        **({} if endpoint is None else dict(_describe_server(endpoint))),
        **dict(options),
    }
    words = {name: write_value(value) for name, value in own.items()}
    free = {f"{name} (suite)" if name in known else name: words[name] for name in words}
    return {**free, **known}


def _describe_server(endpoint: Endpoint) -> Iterator[tuple[str, str]]:
    info = endpoint.info
    if said := " ".join(filter(None, (info.server, info.version))):
        yield SERVER, said
    images = {one.digest or one.image for pod in info.pods or () for one in pod.containers}
    if images:
        yield IMAGE, ", ".join(sorted(images))


def name_of_model(report: Report) -> str:
    """Return the name of the model, or the address of an endpoint whose model has no name."""
    return report.plan.model or report.endpoint.model or report.endpoint.base_url


def find_seed(task: TaskReport) -> str:
    """Return the sampling seed that a task was asked with; "" for none."""
    return read_seed(task.fingerprint)


def read_seed(fingerprint: Mapping[str, str]) -> str:
    """Return the sampling seed of a fingerprint; "" for none."""
    seed = fingerprint.get(SEED, "null")
    return "" if seed == "null" else seed


def without_seeds(attributes: Mapping[str, str], seeds: Sequence[str]) -> dict[str, str]:
    """Return attributes without one that says only which sampling seed a run has."""
    return {
        name: value
        for name, value in attributes.items()
        if not (_SEED_NAME.fullmatch(name) and value in seeds)
    }


def name_folders(runs: Sequence[tuple[Path, Sequence[str], Sequence[str]]]) -> list[str]:
    """Return what the names of run folders say about their deployments.

    `runs` are folders with the tasks and the sampling seeds of each. Times, tasks and these seeds
    are left out, which differ between runs of one deployment, and so is what all names begin with.
    The rest may be empty.
    """
    names = [
        tuple(filter(None, _strip_all(folder.absolute().parts[1:], tasks, seeds)))
        for folder, tasks, seeds in runs
    ]
    common = len(list(takewhile(lambda parts: len({*parts}) == 1, zip(*names, strict=False))))
    return ["/".join(name[common:]) for name in names]


def _strip_all(parts: Sequence[str], tasks: Sequence[str], seeds: Sequence[str]) -> Iterator[str]:
    """Yield the stripped parts of a path.

    A suite numbers runs that it would name alike: a number that is left without tasks and seeds
    says nothing of a deployment.
    """
    for above, part in zip(("", *parts), parts, strict=False):
        left = _strip(part, tasks, seeds)
        if left == part or above != SUITE_RUNS or not left.isdigit():
            yield left


def _strip(part: str, tasks: Sequence[str], seeds: Sequence[str]) -> str:
    """Return a part of a path without times, tasks and seeds; empty if nothing else is left."""
    if part == SUITE_RUNS:
        return ""
    found, timed = _TIME.subn("", part)
    if timed:
        found = re.sub(r"[-_. ]+\d+$", "", found)  # the number of a folder whose name was taken
    for task in sorted(map(file_stem, tasks), key=len, reverse=True):
        found = re.sub(rf"(^|[-_. ]){re.escape(task)}(?=$|[-_. ])", "", found)
    for seed in seeds:
        named = rf"(^|[-_. ])(?:sampling[-_. ]?)?(?:seed|s)[-_.= ]?{re.escape(seed)}(?=$|[-_. ])"
        found = re.sub(named, "", found)
    return found.strip(_GAP) if found != part else part


def choose_shown(attributes: Sequence[Mapping[str, str]], *, least: bool = False) -> list[str]:
    """Return the names of the attributes that a table shows: those that differ between its rows.

    What the user said comes first. Launchers, addresses, servers and options follow only as far as
    they distinguish rows; with `least`, this holds for all.
    """
    names = list(dict.fromkeys(name for one in attributes for name in one))
    shown: list[str] = []
    told = 1
    for name in sorted(names, key=_rank):
        values = [one.get(name) for one in attributes]
        if len(set(values)) < 2 or any(values == [one.get(x) for one in attributes] for x in shown):
            continue  # the same in all rows, or said by another column
        if name != RUN and all(_is_name(one.get(name), one.get(RUN)) for one in attributes):
            continue
        apart = len({tuple(one.get(x) for x in (*shown, name)) for one in attributes})
        if apart > told or (_rank(name) < 2 and not least):
            shown.append(name)
            told = apart
    return shown


def _is_name(value: str | None, run: str | None) -> bool:
    """Return True if an attribute says only what the name of its run says, or nothing."""
    if value is None or run is None:
        return value is None
    own, name = (re.sub(r"[^a-z0-9]", "", one.lower()) for one in (value, run))
    return own == name


def name_deployments(runs: Sequence[Deployed]) -> list[str]:
    """Return a name for the deployment of each run: its model, and what tells it apart.

    A model with one deployment keeps its name. The rest is in brackets, without colons, since
    readers of such names split them at colons: "org/model (fp8, quant_algo FP8)".
    """
    names = []
    for run in runs:
        alike = [one.attributes for one in runs if one.model == run.model]
        shown = choose_shown(alike, least=True)
        told = ", ".join(_name_attribute(name, run.attributes.get(name)) for name in shown)
        names.append(f"{run.model} ({told.replace(':', '-')})" if shown else run.model)
    return names


def _name_attribute(name: str, value: str | None) -> str:
    said = "none" if value is None else shorten(value)
    return said if name == RUN and value else f"{name} {said}"


def _rank(name: str) -> int:
    """Return 0 for the name of the run, 1 for what the user declared, and more for the rest."""
    late = ("preset", LAUNCHER, ENDPOINT, SERVER, IMAGE)
    if name.startswith(f"{LAUNCHER}."):
        return 2 + len(late)
    if name == BEGAN:
        return 3 + len(late)
    return 0 if name == RUN else 2 + late.index(name) if name in late else 1
