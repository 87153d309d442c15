"""Read a suite file, and report all its problems together, each with file and line.

Every key is optional, except that `plans` or `matrix` is required:

    name: nightly
    defaults: {dataset_root: DIR, references_dir: REFS}       # a plan fragment, under every run
    plans:
      - plans/llama.yaml                                     # relative to this file
      - {plan: plans/qwen.yaml, name: qwen-fp8, attributes: {size: 8B}, limits: {concurrency: 16}}
      - {name: tiny, model: org/tiny, base_url: "host:8000", tasks: [gsm8k]}
    matrix: {...}                                            # see suite_form
    exclude: [{model: org/large, task: gsm8k}]               # see suite_form
    waivers: [{match: {name: qwen-fp8, task: mmlu}, reason: "issue 12", until: 2027-01-31}]
    max_runs: 200
    end_when_certain: true                                   # ask no more once a FAIL is certain
    max_tokens_total: 2000000                                # of all plans; also max_time_s

A plan means the same as in `serve-eval run`, with two exceptions. SERVE_EVAL_* variables are
ignored, as is OPENAI_BASE_URL if the suite names an endpoint: a variable must not make all runs of
a matrix the same. A plan file's `output_dir` is ignored, because the suite has one folder.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from serve_eval.client import connection
from serve_eval.errors import PlanError
from serve_eval.plan.resolve import resolve
from serve_eval.plugins.registry import nearest
from serve_eval.schema import Scalar, Spec, Suite, SuiteRun, Waiver
from serve_eval.secret_signs import ADVICE, find_secrets
from serve_eval.workflows.suite import matrix, suite_form
from serve_eval.workflows.suite.matrix import (
    ADDRESSES,
    Layer,
    attributes,
    find_other_seeds,
    line,
    merge,
    places,
)
from serve_eval.workflows.suite.preparation import RefusedRun, name_runs
from serve_eval.yaml_source import YamlDocument
from serve_eval.yaml_source import read as read_yaml

KEYS = (
    *("name", "defaults", "plans", "matrix", "exclude", "waivers", "max_runs"),
    *("end_when_certain", "max_tokens_total", "max_time_s"),
)
WAIVER_KEYS = ("match", "reason", "until")
MOST_RUNS = 200
"""Default limit on the runs of a suite: more are probably a mistake in a matrix."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")


def read(path: Path, environ: Mapping[str, str]) -> Suite:
    """Return the suite of a file, with resolved plans. Raises PlanError with every problem."""
    suite, refused = read_runs(path, environ)
    if refused:
        raise PlanError(name_runs(refused))
    return suite


def read_runs(path: Path, environ: Mapping[str, str]) -> tuple[Suite, Sequence[RefusedRun]]:
    """Return the suite of a file with its sound runs, and the runs whose plans are wrong.

    Raises PlanError with every problem if the file is wrong beyond single runs.
    """
    document = read_yaml(path, PlanError)
    if not isinstance(document.value, dict):
        raise PlanError(f"{path}: expected a mapping with plans or a matrix")
    return _Reader(document, environ).suite()


class _Entry(typing.NamedTuple):
    """A run before its plan is resolved. `given` means that the user chose its name."""

    name: str
    given: bool
    layers: list[Layer]
    path: tuple[str | int, ...]


class _Reader:
    """Reads a suite file and collects its problems."""

    def __init__(self, document: YamlDocument, environ: Mapping[str, str]) -> None:
        self._document, self._environ = document, environ
        self._content: dict[str, Any] = document.value
        self._problems: list[str] = []
        self._refused: list[RefusedRun] = []
        self._hint = ""

    def suite(self) -> tuple[Suite, Sequence[RefusedRun]]:
        for key in self._content:
            if key not in KEYS:
                secret = connection.looks_secret(str(key))
                self._add(
                    (key,),
                    connection.KEY_ADVICE if secret else f"unknown key.{nearest(str(key), KEYS)}",
                )
        name = self._content.get("name") or Path(self._document.name).stem
        if not isinstance(name, str):
            self._add(("name",), "expected a text")
        lowest = self._defaults()
        entries = [*self._plans(lowest), *self._matrix(lowest)]
        self._check_names(entries)
        if not self._content.get("exclude"):
            self._check_count(len(entries))
        # If there are far too many runs, do not resolve all of them only to reject them.
        runs = self._exclude(self._runs(entries[: 2 * MOST_RUNS] if self._problems else entries))
        waivers = tuple(self._waivers())
        bounds = self._bounds()
        if not self._problems and not self._refused and not runs:
            everything = "everything is excluded" if entries else "name plans, or a matrix"
            self._add((), f"the suite has no runs: {everything}")
        self._check_count(len(runs))
        if self._problems:
            found = [*self._problems, *name_runs(self._refused)]
            raise PlanError(list(dict.fromkeys(found)), hint=self._hint)
        return Suite(name=str(name), runs=tuple(runs), waivers=waivers, **bounds), self._refused

    def _add(self, path: Sequence[Any], message: str) -> None:
        shown = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(
            "."
        )
        place = f"{self._document.name}:{self._document.line(*path)}: "
        self._problems.append(f"{place}{shown}: {message}" if shown else f"{place}{message}")

    def _section(self, key: str, kind: type) -> Any:
        value = self._content.get(key)
        if value is not None and not isinstance(value, kind):
            self._add((key,), f"expected a {'list' if kind is list else 'mapping'}")
            value = None
        return kind() if value is None else value

    # --------------------------------------------------------------------------------
    # the runs

    def _defaults(self) -> Layer:
        given = self._section("defaults", dict)
        content = {key: value for key, value in given.items() if key != "attributes"}
        told = self._attributes(given, ("defaults",))
        return Layer(content=content, place=places(self._document, "defaults"), attributes=told)

    def _attributes(self, raw: Mapping[str, Any], path: Sequence[str | int]) -> dict[str, Scalar]:
        given = raw.get("attributes")
        if given is not None and not isinstance(given, Mapping):
            self._add((*path, "attributes"), "expected a mapping")
            given = None
        return dict(given or {})

    def _plans(self, lowest: Layer) -> Iterable[_Entry]:
        for i, raw in enumerate(self._section("plans", list)):
            raw = {"plan": raw} if isinstance(raw, str) else raw
            path = ("plans", i)
            if not isinstance(raw, dict) or not raw:
                self._add(path, "expected a plan, or the path of a plan file")
                continue
            own = {
                key: value
                for key, value in raw.items()
                if key not in ("plan", "name", "attributes", matrix.TASK_LABEL)
            }
            told, tasks = self._attributes(raw, path), raw.get(matrix.TASK_LABEL, "")
            if not isinstance(tasks, str):
                self._add((*path, matrix.TASK_LABEL), "expected a text, a part of the plan's name")
                continue
            place = places(self._document, *path)
            layers = [Layer(content=own, place=place, attributes=told, task_label=tasks)]
            name = matrix.label({key: own[key] for key in ("model", "accuracy_spec") if key in own})
            if (file := raw.get("plan")) is not None:
                if (below := self._plan_file(file, (*path, "plan"))) is None:
                    continue
                layers.insert(0, below)
                name = matrix.slug(Path(file).stem) or name
            if "name" in raw and not (
                isinstance(raw["name"], str) and _NAME.fullmatch(raw["name"])
            ):
                self._add(
                    (*path, "name"),
                    "expected letters, digits, dots, dashes and underscores (it names a folder)",
                )
                continue
            yield _Entry(raw.get("name", name), "name" in raw, [lowest, *layers], path)

    def _plan_file(self, file: Any, path: tuple[str | int, ...]) -> Layer | None:
        if not isinstance(file, str):
            self._add(path, "expected the path of a plan file")
            return None
        try:
            document = read_yaml(
                Path(self._document.name).parent / Path(file).expanduser(), PlanError
            )
        except PlanError as error:
            for problem in error.problems:
                self._add(path, problem)
            self._hint = self._hint or error.hint
            return None
        if not isinstance(document.value, dict):
            self._add(path, f"{file}: expected a mapping of keys such as model and tasks")
            return None
        content = {key: value for key, value in document.value.items() if key != "output_dir"}
        return Layer(content=content, place=places(document))

    def _matrix(self, lowest: Layer) -> Iterable[_Entry]:
        content = self._section("matrix", dict)
        found, problems = matrix.axes(content, self._document) if content else ({}, [])
        for path, message in problems:
            self._add(("matrix", *path), message)
        if found and not problems:
            for name, layers in matrix.combinations(found):
                yield _Entry(name, False, [lowest, *layers], ("matrix",))

    def _check_names(self, entries: Sequence[_Entry]) -> None:
        seen: set[str] = set()
        for entry in (entry for entry in entries if entry.given):
            if entry.name.lower() in seen:
                self._add((*entry.path, "name"), f"two runs are named {entry.name!r}")
            seen.add(entry.name.lower())

    def _runs(self, entries: Sequence[_Entry]) -> list[SuiteRun]:
        given = [entry.name for entry in entries if entry.given]
        derived = iter(matrix.unique([entry.name for entry in entries if not entry.given], given))
        runs = []
        for entry in entries:
            run = self._run(entry, entry.name if entry.given else next(derived))
            if run is not None:
                runs.append(run)
        return runs

    def _run(self, entry: _Entry, name: str) -> SuiteRun | None:
        content, told = merge(entry.layers), attributes(entry.layers)
        where = line(
            entry.layers, lambda: f"{self._document.name}:{self._document.line(*entry.path)}: "
        )
        problems = [
            f"{where()}attributes.{key}: expected a plain value"
            for key, value in told.items()
            if not isinstance(key, str) or not isinstance(value, typing.get_args(Scalar))
        ]
        problems += [
            f"{where('attributes')}attributes.{'.'.join(map(str, place))}: {ADVICE}"
            for place in find_secrets(told)
        ]
        if "output_dir" in content:
            problems.append(f"{where('output_dir')}output_dir: not allowed in a suite; use -o")
        addressed = any(content.get(key) is not None for key in ADDRESSES)
        inherited = {
            k: v for k, v in self._environ.items() if not (addressed and k == "OPENAI_BASE_URL")
        }
        try:
            found = resolve(content, {}, inherited, where, needs_address=True)
            problems += find_other_seeds(entry.layers, found.plan)
        except PlanError as error:
            problems += error.problems
        if problems:
            self._refused.append(RefusedRun(name, told, tuple(problems)))
            return None
        label = next((one.task_label for one in entry.layers if one.task_label), "")
        return SuiteRun(
            name=name, plan=found.plan, attributes=told, notes=found.notes, task_label=label
        )

    def _exclude(self, runs: list[SuiteRun]) -> list[SuiteRun]:
        """Return the runs without the excluded ones and without excluded tasks."""
        for i, pattern in enumerate(self._section("exclude", list)):
            wrong = list(suite_form.problems(pattern))
            for path, message in wrong:
                self._add(("exclude", i, *path), message)
            if wrong or self._problems:
                continue
            left = [kept for run in runs if (kept := _without(pattern, run)) is not None]
            if left == runs and not self._refused:
                self._add(("exclude", i), "excludes nothing: no run matches")
            runs = left
        return runs

    def _bounds(self) -> dict[str, Any]:
        """Return when the suite ends before everything was asked."""
        ends = self._content.get("end_when_certain") or False
        if not isinstance(ends, bool):
            self._add(("end_when_certain",), "expected true or false")
        found = {key: self._content.get(key) for key in ("max_tokens_total", "max_time_s")}
        for key, value in found.items():
            kind = int if key == "max_tokens_total" else int | float
            wrong = isinstance(value, bool) or not isinstance(value, kind)
            if value is not None and (wrong or value <= 0):
                self._add((key,), "expected a number above 0")
        return {"end_when_certain": ends, **found}

    def _check_count(self, count: int) -> None:
        most = self._content.get("max_runs", MOST_RUNS)
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            self._add(("max_runs",), "expected a number, 1 or more")
        elif count > most:
            key = "matrix" if "matrix" in self._content else "plans"
            self._add(
                (key,),
                f"{count} runs exceed max_runs ({most}): exclude some, or set max_runs: {count}",
            )

    # --------------------------------------------------------------------------------
    # the waivers

    def _waivers(self) -> Iterable[Waiver]:
        for i, raw in enumerate(self._section("waivers", list)):
            path = ("waivers", i)
            if not isinstance(raw, dict):
                self._add(path, f"expected a mapping with {', '.join(WAIVER_KEYS)}")
                continue
            before = len(self._problems)
            for key in raw:
                if key not in WAIVER_KEYS:
                    self._add((*path, key), f"unknown key.{nearest(str(key), WAIVER_KEYS)}")
            for inner, message in suite_form.problems(raw.get("match")):
                self._add((*path, "match", *inner), message)
            if not isinstance(raw.get("reason"), str) or not raw["reason"].strip():
                self._add((*path, "reason"), "expected a reason, such as the number of an issue")
            until = _day(raw.get("until"))
            if until is None:
                self._add((*path, "until"), "expected the last valid day, such as 2027-01-31")
            elif len(self._problems) == before:
                yield Waiver(match=raw["match"], reason=raw["reason"].strip(), until=until)


def _without(pattern: Mapping[str, Any], run: SuiteRun) -> SuiteRun | None:
    """Return the run without the tasks that match a pattern, or None if no task is left."""

    def is_named(task: Spec) -> bool:
        return suite_form.matches(pattern, run, task.name)

    tasks = tuple(task for task in run.plan.tasks if not is_named(task))
    if tasks == run.plan.tasks:
        return run
    return replace(run, plan=replace(run.plan, tasks=tasks)) if tasks else None


def _day(value: Any) -> date | None:
    try:
        return date.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
