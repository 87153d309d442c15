"""Say which deployment a run asked, and which runs and tasks were asked alike.

Pure.

Their rows have the name of the run without its folder, unless two of them asked a task alike.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from serve_eval.protocol.sampling_fields import SCORER_OPTIONS
from serve_eval.report.results_table.content import BEGAN, RUN
from serve_eval.schema import Endpoint, Plan, Report, Stability, TaskReport, file_stem
from serve_eval.storage.file_names import SUITE_RUNS
from serve_eval.verdicts.references import SPEC_KEYS
from serve_eval.verdicts.references.lookup import LAUNCHER, list_launched, shorten, write_value

if TYPE_CHECKING:
    from serve_eval.series.measured_runs import MeasuredRun


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


Key = tuple[str, str]
"""A task with all that decides what its value means, as JSON."""


def key_of_column(task: TaskReport) -> Key:
    """Return a task with all that decides what its value means; a sampling seed is a repeat."""
    result, asked = task.result, dict(task.fingerprint)
    asked.pop(SEED, None)
    content = (
        asked,
        task.version,
        count_prompts(task),
        result.metric,
        result.aggregation,
        sorted(judge.name for judge in task.judges),
    )
    return result.task, msgspec.json.encode(content, order="sorted").decode()


def describe_scorer_options(task: TaskReport) -> str:
    """Return the options of the scorers that are not the defaults; "" for none."""
    stored = task.fingerprint.get(SCORER_OPTIONS)
    return "" if stored is None else f"scorer {_flatten(msgspec.json.decode(stored))}"


def _flatten(options: object, above: str = "") -> str:
    """Return nested options on one line: "numeric.absolute 10"."""
    if isinstance(options, dict) and options:
        inside = (_flatten(value, f"{above}.{name}") for name, value in options.items())
        return ", ".join(inside)
    return f"{above.removeprefix('.')} {write_value(options)}"


def count_repeats(task: TaskReport) -> int:
    """Return how often each prompt was asked."""
    result = task.result
    if result.stability is not None:
        return result.stability.repeats
    prompts = task.fingerprint.get("samples", "").partition(" ")[0]
    if not prompts.isdecimal() or int(prompts) == 0 or result.planned % int(prompts):
        return 1
    return max(1, result.planned // int(prompts))


def find_pass_at_all(told: Stability) -> float | None:
    """Return pass@k with k the number of repeats, in percent; None if scores are graded."""
    return next((v for k, v in told.pass_at.items() if int(k) == told.repeats), None)


def count_prompts(task: TaskReport) -> int:
    """Return the number of prompts, each of which may be asked several times."""
    return task.result.planned // count_repeats(task)


def join_folders(
    runs: Sequence[MeasuredRun], folders: Sequence[Path]
) -> tuple[list[MeasuredRun], list[str]]:
    """Return runs with the names of their rows, and a note on the rows of several folders.

    `folders` are those that the user named. A run loses the name of its suite, or of its folder
    among these, if all runs of the short name are of one deployment and no two asked one task.
    """
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, run in enumerate(runs):
        if short := _shorten(run, folders):
            alike[run.model, short].append(i)
    joined, names = list(runs), list[str]()
    for (_, short), places in alike.items():
        group = [runs[i] for i in places]
        taken = any(run.attributes.get(RUN) == short for run in runs)
        if taken or not (_are_one(group) and not _has_collision(group)):
            continue
        shared: dict[str, str] = {RUN: short}
        for run in group:
            shared |= {name: value for name, value in run.attributes.items() if name != RUN}
        for i in places:
            joined[i] = replace(runs[i], attributes=shared)
        if len({run.attributes[RUN] for run in group}) > 1:
            names.append(short)
    if not names:
        return joined, []
    return joined, [
        "one row has the runs of several folders with one name, deployment and attributes, no two"
        f" of which asked the same: {', '.join(names)}; --all shows each"
    ]


def _shorten(run: MeasuredRun, folders: Sequence[Path]) -> str:
    """Return the name of a run without that of its suite or of the folder that was named.

    It is empty if the name has no more than that.
    """
    name, parts = run.attributes.get(RUN, ""), run.folder.absolute().parts
    if run.folder.parent.name == SUITE_RUNS:
        inside = 1
    else:
        tops = [one.absolute().parts for one in folders]
        above = [len(parts) - len(top) for top in tops if parts[: len(top)] == top]
        inside = max(1, *above) if above else 0
    named = name.split("/")
    return "/".join(named[-inside:]) if 0 < inside < len(named) else ""


def _are_one(runs: Sequence[MeasuredRun]) -> bool:
    """Return True if runs are of one deployment.

    Attributes from users and servers may be missing.
    """
    values: dict[str, set[str | None]] = defaultdict(set)
    for name in {name for run in runs for name in run.attributes if name != RUN}:
        for run in runs:
            value = run.attributes.get(name)
            if value is not None or _is_known(name):
                values[name].add(value)
    return all(len(one) == 1 for one in values.values())


def _is_known(name: str) -> bool:
    """Return True for an attribute that every run of a deployment has, if any has it."""
    return name in (*SPEC_KEYS, LAUNCHER, ENDPOINT) or name.startswith(f"{LAUNCHER}.")


def _has_collision(runs: Sequence[MeasuredRun]) -> bool:
    """Return True if runs of several folders asked one task alike."""
    asked: Mapping[Key, set[str]] = defaultdict(set)
    for run in runs:
        for key in _list_asked(run):
            asked[key].add(run.attributes[RUN])
    return any(len(names) > 1 for names in asked.values())


def _list_asked(run: MeasuredRun) -> list[Key]:
    """Return the tasks of a run; of one without a report, with their numbers of prompts."""
    had = [] if run.report is None else [key_of_column(task) for task in run.report.tasks]
    names = {name for name, _ in had}
    lost = [
        (name, f"planned {run.planned[name].prompts}" if name in run.planned else "")
        for name in run.judged
        if name not in names
    ]
    return had + lost
