"""YAML, flags and environment to a Plan. Every problem is reported at once, with its place.

Flags beat environment beats file; the command line merges the first two (each flag has a
SERVE_EVAL_* variable) into `settings`. Form of the file, every key optional but one of `tasks` and
`cases`:

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from serve_eval.cases.planned import PlannedCases, plan_tasks
from serve_eval.client import connection
from serve_eval.errors import PlanError
from serve_eval.evaluation.plan.address import launcher_of, with_normal_address
from serve_eval.evaluation.plan.check import check_repeats, check_specs, check_values
from serve_eval.evaluation.plan.flag_values import absolute
from serve_eval.evaluation.plan.parse import (
    SECTIONS,
    VERDICTS,
    Problems,
    scalars,
    section,
    spec_of,
    tasks_of,
)
from serve_eval.evaluation.plan.set_options import apply_setting
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import scope
from serve_eval.schema import AccuracySpec, Connection, Limits, Plan, Spec, is_mutable

EPS = 0.01
"""Probability with which an early stop may differ from the whole run's verdict, unless one is
given."""
OWN_MODELS = ("embedded", "simulated")
"""Launchers that bring a model of their own, which is called as they are unless it is given a
name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A plan and the run folder that was asked for (None: a new one is to be named); `notes` tell
    what of its case files is not asked.
    """

    plan: Plan
    out_dir: Path | None
    notes: tuple[str, ...] = ()


@scope(join=True)
def resolve(
    file: Mapping[str, Any],
    settings: Mapping[str, Any],
    environ: Mapping[str, str],
    line: Callable[..., str] = lambda *path: "",
) -> Resolved:
    """Make the plan out of a file's content, the settings of the command line and the environment.

    `settings` holds what flags and SERVE_EVAL_* variables gave, under the names of the file's keys,
    the fields of the sections `accuracy_spec`, `connection` and `limits` flat; `tasks` is a list of
    names, `set` a list of NAME.OPTION=VALUE with a task's name, `launcher` or `verdict` as NAME;
    `choices` are options for every task, which the file has under `protocol`. `line(*path)` gives a
    prefix such as "plan.yaml:3: ".

    Raises PlanError with every problem.
    """
    problems = Problems(line)
    values = scalars(file, settings, problems)
    include_path = _include(values, problems)
    sections = {
        name: section(name, kind, file, settings, problems) for name, kind in SECTIONS.items()
    }
    tasks = tasks_of(
        file.get("tasks"), settings.get("tasks"), problems, needed="cases" not in values
    )
    configured = {
        str(text).partition("=")[0].rpartition(".")[0] for text in settings.get("set", ())
    }
    with_cases = _with_cases(tasks, values.get("cases"), configured, problems)
    tasks = with_cases.tasks
    launcher = launcher_of(file, settings, values, environ, problems)
    verdict = spec_of(
        settings.get("verdict", file.get("verdict", "classic")), VERDICTS, ("verdict",), problems
    )
    tasks = [
        _under(task, values.get("protocol") or {}, settings.get("choices") or {}) for task in tasks
    ]
    for text in settings.get("set", ()):
        tasks, launcher, verdict = apply_setting(text, tasks, launcher, verdict, problems)
    tasks = [_with_absolute_tokenizer(task) for task in tasks]
    launcher = with_normal_address(launcher, problems)
    check_specs(tasks, launcher, verdict, problems)
    check_values(values, sections, verdict.name, problems)
    check_repeats(values.get("repeats"), file, tasks, problems)
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
        references_dir=absolute(values.get("references_dir")),
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
    return Resolved(
        plan=plan, out_dir=Path(out_dir).expanduser() if out_dir else None, notes=with_cases.notes
    )


@scope(join=True)
def resolve_launcher(
    file: Mapping[str, Any],
    settings: Mapping[str, Any],
    environ: Mapping[str, str],
    line: Callable[..., str] = lambda *path: "",
) -> Plan:
    """Make a plan without tasks: what decides which servers are started, and the connection.

    It is as `resolve` makes it of the same file. The connection tells that their logs have keys.

    `settings` may have `model`, `include_path` and, in `set`, launcher.OPTION=VALUE. Raises
    PlanError with every problem.
    """
    problems = Problems(line)
    values = scalars(file, settings, problems)
    include_path = _include(values, problems)
    limits = section("limits", Limits, file, settings, problems)
    reached = section("connection", Connection, file, settings, problems)
    launcher, verdict = launcher_of(file, settings, values, environ, problems), Spec(name="classic")
    for text in settings.get("set", ()):
        if text.startswith("launcher."):
            _, launcher, _ = apply_setting(text, [], launcher, verdict, problems)
        else:
            problems.add(("set",), f"expected launcher.OPTION=VALUE, not {text!r}")
    launcher = with_normal_address(launcher, problems)
    check_specs([], launcher, verdict, problems)
    check_values(values, {"limits": limits}, verdict.name, problems)
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
    """Make a plan without tasks: how a running endpoint is reached, as `resolve` makes it of the
    same settings.

    `settings` may have `base_url`, `model` and the fields of `connection`. Raises PlanError with
    every problem.
    """
    problems = Problems(lambda *path: "")
    values = scalars({}, settings, problems)
    launcher = with_normal_address(launcher_of({}, settings, values, environ, problems), problems)
    given = section("connection", Connection, {}, settings, problems)
    for path, message in connection.problems(given, environ):
        problems.add(("connection", *path), message)
    if problems.found:
        raise PlanError(problems.found)
    return Plan(
        model=values.get("model"), launcher=launcher, tasks=(), connection=Connection(**given)
    )


def _with_cases(
    tasks: list[Spec], given: str | list[str] | None, configured: set[str], problems: Problems
) -> PlannedCases:
    """Return the tasks with those of the case files; `configured` are names that options are set
    of.
    """
    if given is None:
        return PlannedCases(tasks=tasks, iterations={}, notes=())
    paths = [
        path for one in ([given] if isinstance(given, str) else given) if (path := absolute(one))
    ]
    try:
        found = plan_tasks(tasks, paths, configured)
    except PlanError as error:  # each with its own file and line
        problems.found += [*error.problems, *([error.hint] if error.hint else [])]
        return PlannedCases(
            tasks=[task for task in tasks if not is_mutable(task.name)], iterations={}, notes=()
        )
    if not found.tasks and not problems.found:
        problems.add(("cases",), f"no case can be asked: {'; '.join(found.notes)}")
    return found


def _under(task: Spec, below: Mapping[str, object], above: Mapping[str, object]) -> Spec:
    """Return a task with the choices for all tasks: those of the file below its own, those of flags
    above.
    """
    return Spec(name=task.name, options={**below, **task.options, **above})


def _with_absolute_tokenizer(task: Spec) -> Spec:
    """Return a task whose tokenizer is found by a run that goes on from another folder."""
    folder = task.options.get("tokenizer")
    return (
        replace(task, options={**task.options, "tokenizer": absolute(folder)})
        if isinstance(folder, str)
        else task
    )


def _repeats(given: int | Mapping[str, int] | None, with_cases: PlannedCases) -> dict[str, Any]:
    """Return how often prompts are asked, as fields of a plan.

    One number holds for all of them; else a task has that of the plan, or of its case file.
    """
    if isinstance(given, int):
        return {"repeats": given}
    told, names = (
        {**with_cases.iterations, **(given or {})},
        {task.name for task in with_cases.tasks},
    )
    return {
        "repeats_of": {name: times for name, times in told.items() if times > 1 and name in names}
    }


def _include(values: Mapping[str, Any], problems: Problems) -> tuple[str, ...]:
    """Return the folders of the user's own code, and search them from now on."""
    found = tuple(dict.fromkeys(_full_paths(values.get("include_path"))))
    try:
        extensions.include(found)
    except PlanError as error:
        for problem in error.problems:
            problems.add(("include_path",), problem.removeprefix("include_path: "))
    return found


def _early_stop(given: bool | float | None) -> float | None:
    return EPS if given is True else float(given) if given else None


def _dataset_roots(given: str | list[str] | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the given roots, then the layout of TensorRT-LLM's models root."""
    roots = _full_paths(given)
    if models := environ.get("LLM_MODELS_ROOT"):
        roots += _full_paths([str(Path(models) / "datasets"), models])
    return tuple(dict.fromkeys(roots))


def _full_paths(paths: str | list[str] | None) -> list[str]:
    """Return the full paths of one or several."""
    return [
        path
        for given in ([paths] if isinstance(paths, str) else paths or [])
        if (path := absolute(given))
    ]
