"""YAML, flags and environment to a Plan. Every problem is reported at once, with its place.

Flags beat environment beats file; the command line merges the first two (each flag has a SERVE_EVAL_* variable) into
`settings`. Form of the file, every key optional but one of `tasks` and `cases`:

    model: meta-llama/Llama-3.1-8B-Instruct
    base_url: http://host:8000                  # or  launcher: {name: simulated, accuracy: 0.7}
    tasks: [mmlu, {gsm8k: {num_fewshot: 5}}]
    cases: my-cases/                            # files and folders of one's own cases, a task for each module
    protocol: {apply_chat_template: true, system_prompt: Be brief.}   # for every task, under its own options
    accuracy_spec: {quant_algo: FP8, kv_cache_quant_algo: FP8}
    dataset_root: DIR
    limit: 200
    limits: {concurrency: 64}
    connection: {headers: {X-Team: evals}, api_key_env: MY_KEY}
    verdict: {classic: {max_missing: 0.02}}
    output_dir: OUT
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.cases.planned import Planned, planned
from serve_eval.client import connection
from serve_eval.errors import PlanError
from serve_eval.plugins import extensions, registry
from serve_eval.plugins.scope import scope
from serve_eval.plugins.values import load_launcher, load_verdict_rule, rules_with_early_stop
from serve_eval.protocol import shared
from serve_eval.schema import AccuracySpec, Connection, Limits, Plan, Spec, lives
from serve_eval.schema.base_url import normalise_base_url

TASKS, LAUNCHERS, VERDICTS = "serve_eval.tasks", "launchers", "serve_eval.verdicts.rules"
EPS = 0.01
"""Probability with which an early stop may differ from the whole run's verdict, unless one is given."""
DEFAULT_BASE_URL = "http://localhost:8000/v1"
OWN_MODELS = ("embedded", "simulated")
"""Launchers that bring a model of their own, which is called as they are unless it is given a name."""

SECTIONS: dict[str, type] = {"accuracy_spec": AccuracySpec, "connection": Connection, "limits": Limits}
"""Keys that hold a mapping of fields."""
_SCALARS: dict[str, Any] = {
    "model": str,
    "reference_model": str,
    "base_url": str,
    "dataset_root": str | list[str],
    "cases": str | list[str],
    "allow_hub": bool,
    "references_dir": str,
    "limit": int,
    "repeats": int | dict[str, int],
    "seed": int,
    "early_stop": bool | float,
    "protocol": dict[str, Any],
    "no_reference": bool,
    "allow_missing_reference": bool,
    "allow_mismatch": list[str],
    "allow_code_execution": bool,
    "include_path": str | list[str],
    "output_dir": str,
}
_SPECS = ("tasks", "launcher", "verdict")
KEYS = (*_SCALARS, *SECTIONS, *_SPECS)
"""Every key of a plan file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A plan and the run folder that was asked for (None: a new one is to be named); `notes` tell what of its case
    files is not asked."""

    plan: Plan
    out_dir: Path | None
    notes: tuple[str, ...] = ()


class _Problems:
    """Collects what is wrong, each with the line of the file where there is one."""

    def __init__(self, line: Callable[..., str]) -> None:
        self.found: list[str] = []
        self._line = line

    def add(self, path: tuple[str | int, ...], message: str) -> None:
        shown = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")
        self.found.append(f"{self._line(*path)}{shown}: {message}")


@scope(join=True)
def resolve(
    file: Mapping[str, Any],
    settings: Mapping[str, Any],
    environ: Mapping[str, str],
    line: Callable[..., str] = lambda *path: "",
) -> Resolved:
    """The plan out of a file's content, the settings of the command line and the environment.

    `settings` holds what flags and SERVE_EVAL_* variables gave, under the names of the file's keys, the fields of the
    sections `accuracy_spec`, `connection` and `limits` flat; `tasks` is a list of names, `set` a list of
    NAME.OPTION=VALUE with a task's name, `launcher` or `verdict` as NAME; `choices` are options for every task, which
    the file has under `protocol`. `line(*path)` gives a prefix such as
    "plan.yaml:3: ". Raises PlanError with every problem.
    """
    problems = _Problems(line)
    values = _scalars(file, settings, problems)
    include_path = _included(values, problems)
    sections = {name: _section(name, kind, file, settings, problems) for name, kind in SECTIONS.items()}
    tasks = _tasks(file.get("tasks"), settings.get("tasks"), problems, needed="cases" not in values)
    configured = {str(text).partition("=")[0].rpartition(".")[0] for text in settings.get("set", ())}
    with_cases = _with_cases(tasks, values.get("cases"), configured, problems)
    tasks = with_cases.tasks
    launcher = _launcher(file, settings, values, environ, problems)
    verdict = _spec(settings.get("verdict", file.get("verdict", "classic")), VERDICTS, ("verdict",), problems)
    tasks = [_under(task, values.get("protocol") or {}, settings.get("choices") or {}) for task in tasks]
    for text in settings.get("set", ()):
        tasks, launcher, verdict = _apply(text, tasks, launcher, verdict, problems)
    tasks = [_with_absolute_tokenizer(task) for task in tasks]
    launcher = _resolve_address(launcher, problems)
    _check_specs(tasks, launcher, verdict, problems)
    _check_values(values, sections, verdict.name, problems)
    _check_repeats(values.get("repeats"), file, tasks, problems)
    for path, message in connection.problems(sections["connection"], environ):
        problems.add(("connection", *path), message)
    if problems.found:
        raise PlanError(problems.found)
    plan = Plan(
        model=values.get("model") or (launcher.name if launcher.name in OWN_MODELS else None),
        launcher=launcher,
        tasks=tuple(tasks),
        verdict=verdict,
        reference_model=values.get("reference_model"),
        accuracy_spec=AccuracySpec(**sections["accuracy_spec"]),
        dataset_roots=_dataset_roots(values.get("dataset_root"), environ),
        allow_hub=values.get("allow_hub", False),
        references_dir=_absolute(values.get("references_dir")),
        limit=values.get("limit"),
        **_repeats(values.get("repeats"), with_cases),
        seed=values.get("seed", 0),
        no_reference=values.get("no_reference", False),
        allow_missing_reference=values.get("allow_missing_reference", False)
        or environ.get("TRTLLM_ACCURACY_NO_REFERENCE") == "1",
        allow_mismatch=tuple(values.get("allow_mismatch", ())),
        integration_test=environ.get("INTEGRATION_TEST") == "1",
        early_stop=_early_stop(values.get("early_stop")),
        allow_code_execution=values.get("allow_code_execution", False),
        include_path=include_path,
        connection=Connection(**sections["connection"]),
        limits=Limits(**sections["limits"]),
    )
    out_dir = values.get("output_dir")
    return Resolved(plan=plan, out_dir=Path(out_dir).expanduser() if out_dir else None, notes=with_cases.notes)


@scope(join=True)
def resolve_launcher(
    file: Mapping[str, Any],
    settings: Mapping[str, Any],
    environ: Mapping[str, str],
    line: Callable[..., str] = lambda *path: "",
) -> Plan:
    """What of a plan decides which servers are started, and the connection, by which their logs are known to have keys:
    a plan without tasks, as `resolve` makes it of the same file.

    `settings` may have `model`, `include_path` and, in `set`, launcher.OPTION=VALUE. Raises PlanError with every
    problem.
    """
    problems = _Problems(line)
    values = _scalars(file, settings, problems)
    include_path = _included(values, problems)
    limits = _section("limits", Limits, file, settings, problems)
    reached = _section("connection", Connection, file, settings, problems)
    launcher, verdict = _launcher(file, settings, values, environ, problems), Spec(name="classic")
    for text in settings.get("set", ()):
        if text.startswith("launcher."):
            _, launcher, _ = _apply(text, [], launcher, verdict, problems)
        else:
            problems.add(("set",), f"expected launcher.OPTION=VALUE, not {text!r}")
    launcher = _resolve_address(launcher, problems)
    _check_specs([], launcher, verdict, problems)
    _check_values(values, {"limits": limits}, verdict.name, problems)
    if problems.found:
        raise PlanError(problems.found)
    return Plan(
        model=values.get("model"),
        launcher=launcher,
        tasks=(),
        include_path=include_path,
        connection=Connection(**reached),
        limits=Limits(**limits),
    )


def resolve_address(settings: Mapping[str, Any], environ: Mapping[str, str]) -> Plan:
    """How a running endpoint is reached: a plan without tasks, as `resolve` makes it of the same settings.

    `settings` may have `base_url`, `model` and the fields of `connection`. Raises PlanError with every problem.
    """
    problems = _Problems(lambda *path: "")
    values = _scalars({}, settings, problems)
    launcher = _resolve_address(_launcher({}, settings, values, environ, problems), problems)
    given = _section("connection", Connection, {}, settings, problems)
    for path, message in connection.problems(given, environ):
        problems.add(("connection", *path), message)
    if problems.found:
        raise PlanError(problems.found)
    return Plan(model=values.get("model"), launcher=launcher, tasks=(), connection=Connection(**given))


def to_file(plan: Plan) -> dict[str, Any]:
    """The plan in the form of a plan file: what `resolve` reads back, and what a dry run shows. Without
    `allow_code_execution`, which has to be said anew: the folder of a run may come from somebody else. For the same
    reason the `include_path` of a saved plan goes through `trust.trusted` first."""
    named = [{spec.name: dict(spec.options)} if spec.options else spec.name for spec in (*plan.tasks, plan.verdict)]
    content: dict[str, Any] = {
        "model": plan.model,
        "reference_model": plan.reference_model,
        "launcher": {"name": plan.launcher.name, **plan.launcher.options},
        "tasks": named[:-1],
        "verdict": named[-1],
        "dataset_root": list(plan.dataset_roots),
        "include_path": list(plan.include_path),
        "references_dir": plan.references_dir,
        "allow_mismatch": list(plan.allow_mismatch),
        "repeats": _repeats_in_file(plan),
        **{name: getattr(plan, name) for name in ("allow_hub", "limit", "seed", "early_stop")},
        **{name: getattr(plan, name) for name in ("no_reference", "allow_missing_reference")},
    }
    for name, kind in SECTIONS.items():
        section = getattr(plan, name)
        content[name] = {f.name: getattr(section, f.name) for f in fields(kind) if getattr(section, f.name) is not None}
    return {key: value for key, value in content.items() if value not in (None, [], {}, False)}


def _repeats(given: int | Mapping[str, int] | None, with_cases: Planned) -> dict[str, Any]:
    """How often prompts are asked, as fields of a plan: all of them by one number, else those of a task as the plan
    says of it, or its case file."""
    if isinstance(given, int):
        return {"repeats": given}
    told, names = {**with_cases.iterations, **(given or {})}, {task.name for task in with_cases.tasks}
    return {"repeats_of": {name: times for name, times in told.items() if times > 1 and name in names}}


def _repeats_in_file(plan: Plan) -> int | dict[str, int] | None:
    if plan.repeats_of:
        return {spec.name: times for spec in plan.tasks if (times := plan.times(spec.name)) > 1}
    return plan.repeats if plan.repeats > 1 else None


def _scalars(file: Mapping[str, Any], settings: Mapping[str, Any], problems: _Problems) -> dict[str, Any]:
    for key in file:
        if key not in KEYS:
            secret = connection.looks_secret(str(key))
            problems.add((key,), connection.KEY_ADVICE if secret else f"unknown key.{registry.nearest(str(key), KEYS)}")
    values: dict[str, Any] = {}
    for name, kind in _SCALARS.items():
        raw = settings.get(name, file.get(name))
        if raw is not None:
            _convert(raw, kind, (name,), values, problems)
    return values


def _convert(raw: Any, kind: Any, path: tuple[str | int, ...], into: dict[str, Any], problems: _Problems) -> None:
    try:
        into[str(path[-1])] = msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        problems.add(path, f"{error}{_choices(kind)}")


def _choices(kind: Any) -> str:
    """The values of a field that takes some words only, and perhaps a number."""
    words = [word for part in (kind, *typing.get_args(kind)) for word in typing.get_args(part) if isinstance(word, str)]
    words += [word for word in typing.get_args(kind) if isinstance(word, str)]
    numbers = ["a number"] if int in typing.get_args(kind) else []
    return f"; expected {' or '.join((*numbers, *dict.fromkeys(words)))}" if words else ""


def _section(
    name: str, kind: type, file: Mapping[str, Any], settings: Mapping[str, Any], problems: _Problems
) -> dict[str, Any]:
    """The fields of a section that were given, flags over file, converted to their types."""
    given = file.get(name) or {}
    if not isinstance(given, Mapping):
        problems.add((name,), "expected a mapping")
        given = {}
    hints = typing.get_type_hints(kind)
    for key in given:
        if key not in hints:
            secret = name == "connection" and connection.looks_secret(str(key))
            problems.add(
                (name, key), connection.KEY_ADVICE if secret else f"unknown key.{registry.nearest(str(key), hints)}"
            )
    found: dict[str, Any] = {}
    for field, hint in hints.items():
        raw = settings.get(field, given.get(field))
        if raw is not None:
            _convert(raw, hint, (name, field), found, problems)
    return found


def _spec(raw: Any, folder: str, path: tuple[str | int, ...], problems: _Problems) -> Spec:
    """`name`, `{name: {options}}` or `{name: NAME, option: value}`."""
    if isinstance(raw, str):
        return Spec(name=raw)
    if isinstance(raw, Mapping) and isinstance(raw.get("name"), str):
        return Spec(name=raw["name"], options={key: value for key, value in raw.items() if key != "name"})
    if isinstance(raw, Mapping) and len(raw) == 1:
        name, options = next(iter(raw.items()))
        if options is None or isinstance(options, Mapping):
            return Spec(name=str(name), options=dict(options or {}))
    problems.add(path, "expected a name, or a name with a mapping of options")
    return Spec(name=registry.names(folder)[0])


def _tasks(in_file: Any, chosen: list[str] | None, problems: _Problems, *, needed: bool) -> list[Spec]:
    if in_file is not None and not isinstance(in_file, list):
        problems.add(("tasks",), "expected a list")
        in_file = []
    listed = [_spec(raw, TASKS, ("tasks", i), problems) for i, raw in enumerate(in_file or [])]
    if chosen is not None:
        by_name = {spec.name: spec for spec in listed}
        listed = [by_name.get(name, Spec(name=name)) for name in chosen]
    if needed and not listed and not problems.found:
        known = ", ".join(registry.names(TASKS))
        problems.add(("tasks",), f"name at least one task (--tasks A,B). Known: {known}")
    names = [spec.name for spec in listed]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add(("tasks",), f"{name} is listed twice")
    return listed


def _with_cases(tasks: list[Spec], given: str | list[str] | None, configured: set[str], problems: _Problems) -> Planned:
    """The tasks with those of the case files; `configured` are names that options are set of."""
    if given is None:
        return Planned(tasks=tasks, iterations={}, notes=())
    paths = [path for one in ([given] if isinstance(given, str) else given) if (path := _absolute(one))]
    try:
        found = planned(tasks, paths, configured)
    except PlanError as error:  # each with its own file and line
        problems.found += [*error.problems, *([error.hint] if error.hint else [])]
        return Planned(tasks=[task for task in tasks if not lives(task.name)], iterations={}, notes=())
    if not found.tasks and not problems.found:
        problems.add(("cases",), f"no case can be asked: {'; '.join(found.notes)}")
    return found


def _under(task: Spec, below: Mapping[str, object], above: Mapping[str, object]) -> Spec:
    """A task with the choices for all tasks: those of the file below its own options, those of flags above them."""
    return Spec(name=task.name, options={**below, **task.options, **above})


def _with_absolute_tokenizer(task: Spec) -> Spec:
    """A run that goes on from another folder is to find it again."""
    folder = task.options.get("tokenizer")
    return replace(task, options={**task.options, "tokenizer": _absolute(folder)}) if isinstance(folder, str) else task


def _launcher(
    file: Mapping[str, Any],
    settings: Mapping[str, Any],
    values: Mapping[str, Any],
    environ: Mapping[str, str],
    problems: _Problems,
) -> Spec:
    """The launcher; `base_url` is short for the launcher `external` with that address."""
    chosen = settings.get("launcher")
    if chosen is None and "base_url" not in settings and file.get("launcher") is not None:
        spec = _spec(file["launcher"], LAUNCHERS, ("launcher",), problems)
        clash = "base_url" in file
    elif chosen is not None:
        in_file = _spec(file.get("launcher") or chosen, LAUNCHERS, ("launcher",), problems)
        spec = in_file if in_file.name == chosen else Spec(name=chosen)
        clash = "base_url" in settings
    else:
        in_file = _spec(file.get("launcher") or "external", LAUNCHERS, ("launcher",), problems)
        spec, clash = in_file if in_file.name == "external" else Spec(name="external"), False
    if spec.name != "external":
        if clash:
            problems.add(("base_url",), f"excludes the launcher {spec.name!r}, which starts its own endpoint")
        return spec
    base_url = settings.get("base_url") or environ.get("OPENAI_BASE_URL") or values.get("base_url")
    base_url = base_url or spec.options.get("base_url") or DEFAULT_BASE_URL
    return Spec(name="external", options={**spec.options, "base_url": base_url})


def _resolve_address(launcher: Spec, problems: _Problems) -> Spec:
    """The launcher with its base URL in the one form that is saved and shown."""
    if launcher.name != "external":
        return launcher
    try:
        base_url = normalise_base_url(str(launcher.options["base_url"]))
    except PlanError as error:
        problems.found += error.problems
        base_url = DEFAULT_BASE_URL
    return Spec(name="external", options={**launcher.options, "base_url": base_url})


def _apply(
    text: str, tasks: list[Spec], launcher: Spec, verdict: Spec, problems: _Problems
) -> tuple[list[Spec], Spec, Spec]:
    """One NAME.OPTION=VALUE; the value is YAML, so `null`, `true`, numbers and [lists] are what they look like."""
    import yaml

    target, _, raw = text.partition("=")
    name, _, option = target.rpartition(".")  # names may have dots, options of tasks have none
    if target.startswith("launcher."):
        name, _, option = target.partition(".")
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError:
        value = raw
    if not all(option.split(".")) or "=" not in text:
        problems.add(("set",), f"expected NAME.OPTION=VALUE, not {text!r}")
    elif name == "launcher":
        launcher = Spec(name=launcher.name, options=_with_set(launcher.options, option.split("."), value, problems))
    elif name == "verdict":
        verdict = Spec(name=verdict.name, options={**verdict.options, option: value})
    elif name in {task.name for task in tasks}:
        tasks = [
            Spec(name=task.name, options={**task.options, option: value}) if task.name == name else task
            for task in tasks
        ]
    else:
        known = [*(task.name for task in tasks), "launcher", "verdict"]
        problems.add(("set",), f"{name!r} is not a task of this run.{registry.nearest(name, known)}")
    return tasks, launcher, verdict


def _with_set(
    options: Mapping[str, object], path: Sequence[str], value: object, problems: _Problems, before: str = "launcher"
) -> dict[str, object]:
    """The options with one of them set, which may stand below others."""
    name, *below = path
    if not below:
        return {**options, name: value}
    found = options.get(name)
    if found is not None and not isinstance(found, Mapping):
        problems.add(("set",), f"{before}.{name} is {found!r} in this plan, below which nothing can be set")
        return dict(options)
    return {**options, name: _with_set(found or {}, below, value, problems, f"{before}.{name}")}


def _check_specs(tasks: list[Spec], launcher: Spec, verdict: Spec, problems: _Problems) -> None:
    """Names and options against the folders."""
    for folder, spec, path in (
        *((TASKS, task, ("tasks", i, task.name)) for i, task in enumerate(tasks)),
        (LAUNCHERS, launcher, ("launcher",)),
        (VERDICTS, verdict, ("verdict",)),
    ):
        try:
            if folder == TASKS:
                shared.build_task(spec)
                continue
            if folder == LAUNCHERS:
                load_launcher(spec.name).check_options(spec.options, "launcher")
                continue
            rule = load_verdict_rule(spec.name)
            rule.check_options(spec.options, "")
            if rule.check is not None:
                rule.check(**spec.options)
        except PlanError as error:
            for problem in error.problems:
                option = re.match(r"(?:launcher)?\.([\w.-]+): (.*)", problem, re.DOTALL)
                said = option[2] if option else problem
                hint = f". {error.hint}" if error.hint else ""
                problems.add((*path, *option[1].split(".")) if option else path, f"{said}{hint}")


def _check_values(
    values: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any]], rule: str, problems: _Problems
) -> None:
    repeats = values.get("repeats", 1)
    numbers: dict[tuple[str, ...], int] = {("limit",): values.get("limit", 1)}
    if isinstance(repeats, Mapping):
        numbers |= {("repeats", name): times for name, times in repeats.items()}
    else:
        numbers["repeats",] = repeats
    for path, number in numbers.items():
        if number < 1:
            problems.add(path, "must be 1 or more")
    eps = values.get("early_stop")
    if eps is not None and not isinstance(eps, bool) and not 0.0 < eps < 1.0:
        problems.add(("early_stop",), "must be true, false or a probability between 0 and 1, such as 0.01")
    if eps and sections["limits"].get("order") in ("prefix", "longest"):
        problems.add(("early_stop",), "starts the samples in random order: leave out --order")
    if eps and _never_stops_early(rule):
        known = ", ".join(rules_with_early_stop())
        problems.add(("early_stop",), f"is known for the rules {known}, not for {rule!r}: leave one of the two out")
    for name, value in sections["limits"].items():
        if isinstance(value, bool | str):
            continue
        from_zero = name in ("retry_budget", "order_seed", "outage_timeout_s")
        if not (0 < value < float("inf") or (from_zero and value == 0)):
            least = "0 or more" if from_zero else "above 0"
            problems.add(("limits", name), f"must be {least} and finite")
        elif name == "max_error_rate" and value > 1:
            problems.add(("limits", name), "must be at most 1: it is a share of the samples")
    references_dir = values.get("references_dir")
    if references_dir and not Path(references_dir).expanduser().is_dir():
        problems.add(("references_dir",), f"{references_dir} is not a folder")


def _never_stops_early(rule: str) -> bool:
    try:
        return load_verdict_rule(rule).early_stop is None
    except PlanError:  # `_check_specs` says what is wrong with it
        return True


def _check_repeats(given: object, file: Mapping[str, Any], tasks: list[Spec], problems: _Problems) -> None:
    """The names of tasks. Those of the file that flags leave out may be there."""
    if not isinstance(given, Mapping):
        return
    listed = file.get("tasks") if isinstance(file.get("tasks"), list) else []
    in_file = [_spec(raw, TASKS, ("tasks",), _Problems(lambda *path: "")) for raw in listed or []]
    known = {task.name for task in (*tasks, *in_file)}
    for name in given:
        if name not in known and not lives(name):
            problems.add(("repeats", name), f"is not a task of this run.{registry.nearest(name, sorted(known))}")


def _included(values: Mapping[str, Any], problems: _Problems) -> tuple[str, ...]:
    """The folders of the user's own code, which are searched from now on."""
    found = tuple(dict.fromkeys(_absolute_all(values.get("include_path"))))
    try:
        extensions.include(found)
    except PlanError as error:
        for problem in error.problems:
            problems.add(("include_path",), problem.removeprefix("include_path: "))
    return found


def _early_stop(given: bool | float | None) -> float | None:
    return EPS if given is True else float(given) if given else None


def _dataset_roots(given: str | list[str] | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The given roots, then the layout of TensorRT-LLM's models root."""
    roots = _absolute_all(given)
    if models := environ.get("LLM_MODELS_ROOT"):
        roots += _absolute_all([str(Path(models) / "datasets"), models])
    return tuple(dict.fromkeys(roots))


def _absolute_all(paths: str | list[str] | None) -> list[str]:
    """Of one path or several."""
    return [path for given in ([paths] if isinstance(paths, str) else paths or []) if (path := _absolute(given))]


def _absolute(path: str | None) -> str | None:
    return str(Path(path).expanduser().absolute()) if path else None
