"""Build a Plan from YAML, flags and environment variables, and report all problems together.

Flags override the environment, which overrides the file. The command line merges the first two
(each flag has a SERVE_EVAL_* variable) into `settings`. All keys of the file are optional, except
that it needs `tasks` or `cases`:

    model: meta-llama/Llama-3.1-8B-Instruct
    base_url: http://host:8000                  # or  launcher: {name: simulated, accuracy: 0.7}
    tasks: [mmlu, {gsm8k: {num_fewshot: 5}}]
    cases: my-cases/                            # files and folders of your own cases, a task each
    protocol: {apply_chat_template: true, system_prompt: Be brief.}  # of all tasks, below their own
    preset: auto                                # sampling as the model's card says, below protocol
    effort: high
    accuracy_spec: {quant_algo: FP8, kv_cache_quant_algo: FP8}
    dataset_root: DIR
    limit: 200
    limits: {concurrency: 64}
    connection: {headers: {X-Team: evals}, api_key_env: MY_KEY}
    verdict: {classic: {max_missing: 0.02}}
    expect: {kv_transfer: true}
    output_dir: OUT
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from serve_eval.cases.planned import PlannedCases, plan_tasks
from serve_eval.client import connection
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plan.check import (
    check_repeats,
    check_secrets,
    check_specs,
    check_values,
    merge_expected,
)
from serve_eval.plan.chosen_samples import note_repeats, parse_shard, read_choice, read_repeats
from serve_eval.plan.launcher import launcher_of, rehearse, with_normal_address
from serve_eval.plan.plan_file import (
    SECTIONS,
    VERDICTS,
    Problems,
    scalars,
    section,
    spec_of,
    tasks_of,
)
from serve_eval.plan.settings import apply_setting
from serve_eval.plan.shared_options import absolute
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import scope
from serve_eval.schema import (
    AccuracySpec,
    Connection,
    Limits,
    ModelPreset,
    Plan,
    Shard,
    Spec,
    is_mutable,
)
from serve_eval.schema.task import REQUESTS

EPS = 0.01
"""Default probability that an early stop gives another verdict than the whole run."""
OWN_MODELS = ("embedded", "simulated")
"""Launchers with a model of their own. The model is named after the launcher by default."""


@freeze
class Resolved:
    """A plan and the requested run folder (None: a new folder).

    `notes` name the parts of the case files that are not asked.
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
    *,
    makes_references: bool = False,
    needs_tasks: bool = True,
    needs_address: bool = False,
) -> Resolved:
    """Build the plan from a file's content, the settings of the command line and the environment.

    `settings` holds the values of flags and SERVE_EVAL_* variables under the names of the file's
    keys. Fields of the sections `accuracy_spec`, `connection` and `limits` are at the top level.
    `tasks` is a list of names. `set` is a list of NAME.OPTION=VALUE, where NAME is a task,
    `launcher` or `verdict`. `choices` holds options for every task, which the file has under
    `protocol`. `line(*path)` returns a prefix such as "plan.yaml:3: ". With
    `makes_references`, the command makes a folder of references that is missing. Without
    `needs_tasks`, a plan without tasks is right too. With `needs_address`, localhost does not
    stand for an address that is missing.

    Raises PlanError with every problem.
    """
    problems = Problems(line)
    values = scalars(file, merge_expected(file, settings), problems)
    include_path = _include(values, problems)
    sections = {
        name: section(name, kind, file, settings, problems) for name, kind in SECTIONS.items()
    }
    tasks = tasks_of(
        file.get("tasks"),
        settings.get("tasks"),
        problems,
        needed=needs_tasks and not {"cases", "requests"} & values.keys(),
    )
    tasks = _with_requests(tasks, values.get("requests"))
    configured = {
        str(text).partition("=")[0].rpartition(".")[0] for text in settings.get("set", ())
    }
    with_cases = _with_cases(tasks, values.get("cases"), configured, problems)
    tasks = with_cases.tasks
    launcher = launcher_of(file, settings, values, environ, problems)
    rule = settings.get("verdict", file.get("verdict", _usual_rule(settings)))
    verdict = spec_of(rule, VERDICTS, ("verdict",), problems)
    tasks = [
        Spec(
            name=task.name,
            options={
                **(values.get("protocol") or {}),
                **task.options,
                **(settings.get("choices") or {}),
            },
        )
        for task in tasks
    ]
    for text in settings.get("set", ()):
        tasks, launcher, verdict = apply_setting(text, tasks, launcher, verdict, problems)
    verdict, identical = _take_identical(verdict, values, problems)
    tasks = [_with_absolute_tokenizer(task) for task in tasks]
    launcher = with_normal_address(launcher, problems, needs_address=needs_address)
    check_secrets(values, tasks, launcher, verdict, problems)
    preset, tasks = _take_preset(tasks, file, settings, values, launcher, problems)
    check_specs(tasks, launcher, verdict, problems)
    launcher = _choose_rehearsal(launcher, settings, problems)
    check_values(values, sections, verdict.name, problems, makes_references=makes_references)
    check_repeats(values.get("repeats"), file, tasks, problems)
    for path, message in connection.problems(sections["connection"], environ):
        problems.add(("connection", *path), message)
    shard = _shard(values.get("shard"), environ, problems)
    chosen = read_choice(values.get("samples"), tasks, problems)
    if problems.found:
        raise PlanError(problems.found)
    repeats = read_repeats(values.get("repeats"), with_cases)
    plan = Plan(
        model=_name_model(values, launcher),
        launcher=launcher,
        tasks=tuple(tasks),
        verdict=verdict,
        rule_named=bool(settings.get("verdict", file.get("verdict")) or verdict.options),
        reference_model=values.get("reference_model"),
        accuracy_spec=AccuracySpec(**sections["accuracy_spec"]),
        dataset_roots=list_roots(values.get("dataset_root"), environ),
        allow_hub=values.get("allow_hub", False),
        references_dir=absolute(values.get("references_dir")),
        **chosen,
        limit=values.get("limit"),
        shard=shard,
        **repeats,
        seed=values.get("seed", 0),
        no_reference=values.get("no_reference", False),
        allow_missing_reference=values.get("allow_missing_reference", False)
        or bool(settings.get("rehearse"))
        or environ.get("TRTLLM_ACCURACY_NO_REFERENCE") == "1",
        allow_mismatch=tuple(values.get("allow_mismatch", ())),
        integration_test=environ.get("INTEGRATION_TEST") == "1",
        early_stop=_early_stop(values.get("early_stop")),
        accept_identical=identical,
        allow_code_execution=values.get("allow_code_execution", False),
        allow_meaningless=values.get("allow_meaningless", False),
        include_path=include_path,
        server_defaults=values.get("server_defaults", "neutral"),
        expect=values.get("expect", {}),
        no_prompts=values.get("no_prompts", False),
        no_media=values.get("no_media", False),
        preset=preset,
        connection=Connection(**sections["connection"]),
        limits=Limits(**sections["limits"]),
        gpus=values.get("gpus"),
        end_when_certain=values.get("end_when_certain", False),
    )
    out_dir = values.get("output_dir")
    return Resolved(
        plan=plan,
        out_dir=Path(out_dir).expanduser() if out_dir else None,
        notes=(*with_cases.notes, *note_repeats(values.get("repeats"), plan)),
    )


def _usual_rule(settings: Mapping[str, Any]) -> str:
    """Return the rule of a plan that names none: `paired` for a margin, as in compare."""
    margin = any(str(text).startswith("verdict.margin=") for text in settings.get("set", ()))
    return "paired" if margin else "classic"


@scope(join=True)
def resolve_launcher(
    file: Mapping[str, Any],
    settings: Mapping[str, Any],
    environ: Mapping[str, str],
    line: Callable[..., str] = lambda *path: "",
) -> Plan:
    """Build a plan without tasks: the launcher, its options and the connection.

    They are the same as those from `resolve` for the same file. The connection is needed for its
    keys, which may occur in server logs. `settings` may have `model`, `include_path` and, in `set`,
    launcher.OPTION=VALUE. Raises PlanError with every problem.
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
    check_secrets(values, [], launcher, verdict, problems)
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
    """Build a plan without tasks for a running endpoint, as `resolve` builds it.

    `settings` may have `base_url`, `model` and the fields of `connection`. Raises PlanError with
    every problem.
    """
    problems = Problems(lambda *path: "")
    values = scalars({}, settings, problems)
    launcher = with_normal_address(launcher_of({}, settings, values, environ, problems), problems)
    check_secrets(values, [], launcher, Spec(name="classic"), problems)
    given = section("connection", Connection, {}, settings, problems)
    for path, message in connection.problems(given, environ):
        problems.add(("connection", *path), message)
    if problems.found:
        raise PlanError(problems.found)
    return Plan(
        model=values.get("model"), launcher=launcher, tasks=(), connection=Connection(**given)
    )


def _name_model(values: Mapping[str, Any], launcher: Spec) -> str | None:
    """Return the model of a plan; some launchers have one of their own."""
    return values.get("model") or (launcher.name if launcher.name in OWN_MODELS else None)


def _take_preset(
    tasks: list[Spec],
    file: Mapping[str, Any],
    settings: Mapping[str, Any],
    values: Mapping[str, Any],
    launcher: Spec,
    problems: Problems,
) -> tuple[ModelPreset | None, list[Spec]]:
    """Return the preset of a plan and its tasks, with the values of the preset below their own."""
    effort = settings.get("effort", file.get("effort"))
    if values.get("preset") is None and effort is None:
        return None, tasks
    from serve_eval.plan import presets

    presets.check_untaken(file.get("preset"), settings.get("preset"), problems)
    preset = presets.read_preset(values.get("preset"), effort, problems)
    if preset is None:
        return None, tasks
    model = _name_model(values, launcher)
    models = [one for one in (model, values.get("reference_model")) if one] if model else []
    try:
        taken, completed = presets.take_preset(preset, tasks, models)
    except PlanError as error:
        end = "" if str(error).endswith(("?", ".")) else "."
        path = ("preset",) if preset.name else ("effort",)
        problems.add(path, f"{error}{end} {error.hint}".rstrip())
        return preset, tasks
    return taken, list(completed)


def _choose_rehearsal(launcher: Spec, settings: Mapping[str, Any], problems: Problems) -> Spec:
    """Return the launcher, or its rehearsal if the settings ask for one."""
    if not settings.get("rehearse"):
        return launcher
    try:
        return rehearse(launcher)
    except PlanError as error:
        problems.found += [*error.problems, *([error.hint] if error.hint else [])]
        return launcher


def _with_cases(
    tasks: list[Spec], given: str | list[str] | None, configured: set[str], problems: Problems
) -> PlannedCases:
    """Return the tasks with those of the case files.

    `configured` holds the names whose options are set.
    """
    if given is None:
        return PlannedCases(tasks=tasks, iterations={}, notes=())
    paths = [
        path for one in ([given] if isinstance(given, str) else given) if (path := absolute(one))
    ]
    try:
        found = plan_tasks(tasks, paths, configured)
    except PlanError as error:  # its problems have their own file and line
        problems.found += [*error.problems, *([error.hint] if error.hint else [])]
        return PlannedCases(
            tasks=[task for task in tasks if not is_mutable(task.name)], iterations={}, notes=()
        )
    if not found.tasks and not problems.found:
        problems.add(("cases",), f"no case can be asked: {'; '.join(found.notes)}")
    return found


def _with_requests(tasks: list[Spec], path: str | None) -> list[Spec]:
    """Return the tasks with that of recorded requests, whose file this is."""
    if path is None:
        return tasks
    own = next((one for one in tasks if one.name == REQUESTS), Spec(name=REQUESTS))
    found = replace(own, options={**own.options, "path": absolute(path)})
    return [*(one for one in tasks if one.name != REQUESTS), found]


def _with_absolute_tokenizer(task: Spec) -> Spec:
    """Return a task with an absolute tokenizer path, for a resume from another folder."""
    folder = task.options.get("tokenizer")
    return (
        replace(task, options={**task.options, "tokenizer": absolute(folder)})
        if isinstance(folder, str)
        else task
    )


def _include(values: Mapping[str, Any], problems: Problems) -> tuple[str, ...]:
    """Return the folders of the user's own code, and add them to the search path.

    Raises PlanError for a wrong one at once: all of their names would be unknown as well.
    """
    found = tuple(dict.fromkeys(_full_paths(values.get("include_path"))))
    try:
        extensions.include(found)
    except PlanError as error:
        for problem in error.problems:
            problems.add(("include_path",), problem.removeprefix("include_path: "))
        raise PlanError(problems.found) from None
    return found


def _shard(given: str | None, environ: Mapping[str, str], problems: Problems) -> Shard | None:
    if given is None:
        return None
    try:
        return parse_shard(given, environ)
    except PlanError as error:
        problems.add(("shard",), str(error))
        return None


def _take_identical(
    verdict: Spec, values: Mapping[str, Any], problems: Problems
) -> tuple[Spec, bool]:
    """Return the verdict rule without `accept_identical`, and the value of that key.

    It belongs to no rule: what passes by identity is judged by none.
    """
    options = dict(verdict.options)
    given = options.pop("accept_identical", values.get("accept_identical") or False)
    if not isinstance(given, bool):
        problems.add(("verdict", "accept_identical"), f"must be true or false, not {given!r}")
    return Spec(name=verdict.name, options=options), given is True


def _early_stop(given: bool | float | None) -> float | None:
    return EPS if given is True else float(given) if given else None


def list_roots(given: str | list[str] | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the given roots, followed by those of TensorRT-LLM's models root."""
    roots = _full_paths(given)
    if models := environ.get("LLM_MODELS_ROOT"):
        roots += _full_paths([str(Path(models) / "datasets"), models])
    return tuple(dict.fromkeys(roots))


def _full_paths(paths: str | list[str] | None) -> list[str]:
    """Return the absolute paths of one or several paths."""
    return [
        path
        for given in ([paths] if isinstance(paths, str) else paths or [])
        if (path := absolute(given))
    ]
