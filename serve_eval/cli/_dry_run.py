"""Show what a run would do, without sending anything."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.cli._streams import emit, path_of, say
from serve_eval.errors import PlanError
from serve_eval.evaluation.deployment import check_inherited
from serve_eval.evaluation.launch import job_size, list_disagreements
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.run_cost import find_token_bound
from serve_eval.plan.applicable_reference import write_taking
from serve_eval.plan.command_line import HOW_TO_TAKE
from serve_eval.plan.plan_file import to_file
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.values import load_launcher, load_verdict_rule
from serve_eval.protocol.conversation import bound_requests, list_prompts
from serve_eval.report.lines import describe_preset
from serve_eval.report.summary.figures import count
from serve_eval.report.text import clean
from serve_eval.schema import HOLDOUT, MEAN, LaunchContext, Plan, Prompt, Sample
from serve_eval.shell_words import join_words, quote_path
from serve_eval.stats.classic import classic_test
from serve_eval.stats.multiplicity import SPENT_ON_LOOKS
from serve_eval.storage.assessments import judges_of
from serve_eval.storage.file_names import LOGS
from serve_eval.storage.json_files import pretty_json
from serve_eval.verdicts.exit_code import PASS, UNDECIDED
from serve_eval.whole_file import replace_named_file
from serve_eval.workflows.power import forecast

SHOWN = 12_000
"""Most characters of a prompt that are shown: enough for five worked examples, not for a book."""


NOT_TAKEN = "the preset follows from the model, which the run asks the endpoint for (or --model)"


def dump(plan: Plan, file: Path) -> int:
    """Write every prompt as a JSON line and return their number.

    A line has the task, the id, the prompt (text or messages) and the target, and the choices if
    there are any. Raises PlanError if the file cannot be written.
    """
    prepared = prepare(replace(plan, allow_missing_reference=True))
    try:
        with replace_named_file(path_of(file)) as out:
            for p in prepared:
                for sample in p.dataset.samples:
                    line = {
                        "task": p.task.name,
                        "id": sample.id,
                        "prompt": sample.prompt,
                        "target": sample.target,
                    }
                    more = {"choices": sample.choices} if sample.choices else {}
                    more |= {"heads": sample.heads} if sample.heads else {}
                    out.write(msgspec.json.encode({**line, **more}) + b"\n")
    except OSError as error:
        raise PlanError(f"--dump-prompts: {file} cannot be written: {error.strerror}") from error
    return sum(len(p.dataset.samples) for p in prepared)


def show_only(
    plan: Plan,
    *,
    dry_run: bool,
    dump_to: Path | None,
    as_json: bool,
    out_dir: Path | None,
) -> int:
    """Write the prompts to a file, or show the plan, or both. Return the exit code."""
    if dump_to is not None:
        say(f"{dump(plan, dump_to)} prompts written to {dump_to}; nothing was sent")
    return show(plan, as_json=as_json, out_dir=out_dir) if dry_run else PASS


def show(plan: Plan, *, as_json: bool, out_dir: Path | None = None) -> int:
    """Print the plan, the launcher's commands, and the requests and thresholds of each task.

    The reference and the first prompt of each task are shown as well, and the tokens that a run in
    `out_dir` is expected to cost. Returns the exit code: 3 if the run would be refused because no
    reference applies.
    """
    for line in list_disagreements(plan):  # Also where data sets are missing.
        say(f"warning: {line}")
    if need := describe_size(plan):
        say(f"note: {need}")
    prepared = prepare(replace(plan, allow_missing_reference=True))
    commands, files = preview(plan, Path(LOGS))
    tests = sum(takes_pairs(one) for one in prepared)
    tokens = [forecast.forecast_tokens(plan, p, out_dir) for p in prepared]
    tasks = [
        (known := facts(p, plan.times(p.task.name)))
        | _time_of_quota(plan, known["requests"])
        | _name_rules(plan, p)
        | _early_stop(plan, p)
        | _foresee_identity(plan, p)
        | plan_pairs(plan, p, tests)
        | forecast.describe_forecast(plan, p, found, tests)
        for p, found in zip(prepared, tokens, strict=True)
    ]
    cost = forecast.sum_up(tokens, find_token_bound(plan))
    if as_json:
        content = {
            "plan": to_file(plan),
            "commands": commands,
            "files": files,
            "tasks": tasks,
            "tokens": tokens,
        }
        emit(pretty_json(content).decode())
    else:
        emit(_text(plan, commands, files, tasks, cost))
    unjudged = (
        plan.model is None
        or plan.no_reference
        or plan.allow_missing_reference
        or plan.integration_test
    )
    if unjudged or all(p.reference is not None for p in prepared):
        return PASS
    lacking = [p for p in prepared if p.reference is None]
    names = ", ".join(p.task.name for p in lacking)
    say(
        f"error: the run would be refused: no reference applies to {names} (the reason"
        " is above; --set allow_missing_reference=true runs it without)",
        f"{HOW_TO_TAKE}:",
        f"  {write_taking(plan, [p.spec.name for p in lacking])}",
    )
    return UNDECIDED


def facts(prepared: PreparedTask, repeats: int) -> dict[str, Any]:
    """Return what is known of a task before anything is sent."""
    h, found = prepared.hypothesis, prepared.reference
    facts: dict[str, Any] = {
        "task": prepared.task.name,
        "requests": repeats * sum(map(_count_requests, prepared.dataset.samples)),
        "num_samples": h.num_samples,
        "sigma": h.sigma,
        "alpha": h.alpha,
        "beta": h.beta,
        "data": prepared.dataset.files,
        "notes": prepared.notes,
    }
    if found is None:
        facts["no_reference"] = prepared.why_no_reference
    else:
        assert h.num_samples is not None
        better = (
            prepared.task.metric.higher_is_better
            if found.higher_is_better is None
            else found.higher_is_better
        )
        test = classic_test(h.num_samples, found.value, h.sigma, h.alpha, h.beta, better)
        facts |= {
            "reference": found.value,
            "threshold": test.threshold if found.threshold is None else found.threshold,
            "theta": test.theta if found.threshold is None else None,
            "reference_source": f"{found.file}:{found.line}",
            "protocol": prepared.protocol,
        }
    if prepared.acceptance is not None:
        facts["acceptance_length"] = (
            f"{prepared.task.acceptance_length}, at least {prepared.acceptance.min_al:.3f} tokens"
            " per step"
        )
    if prepared.task.program is not None:
        facts["runs_code"] = (
            "its answers run as programs on this machine, as --allow-code-execution permits"
        )
    if judges := judges_of(prepared.task, prepared.dataset.samples):
        facts["judge_requests"] = {judge.name: repeats * count for judge, count in judges}
    if talks := [t for s in prepared.dataset.samples if (t := s.conversation) is not None]:
        most = repeats * sum(map(bound_requests, talks))
        facts["conversations"] = f"{len(talks)}, of at most {count(most, 'request')} in all"
    if choices := prepared.dataset.samples[0].choices:
        facts["choices"] = (
            f"{', '.join(map(repr, choices))}: one request for each; the likeliest is the answer"
        )
    first = prepared.dataset.samples[0]
    facts["first_prompt"] = (
        "(not shown: it is part of a hold-out set)" if HOLDOUT in first.metadata else first.prompt
    )
    return facts


def _count_requests(sample: Sample) -> int:
    """Return the requests of a sample, but for those that follow calls of tools."""
    return len(sample.choices) or len(list_prompts(sample))


def _time_of_quota(plan: Plan, requests: int) -> dict[str, str]:
    """Return the time that a quota makes of the requests, if it takes a minute or more."""
    quota = plan.limits.requests_per_minute
    minutes = 0 if quota is None else (requests - 1) // quota
    if not minutes:
        return {}
    return {"quota": f"{quota} requests per minute, which take at least {minutes} min"}


def _name_rules(plan: Plan, prepared: PreparedTask) -> dict[str, str]:
    """Return which rule will judge and why, and which other one is shown too."""
    found, rule = prepared.reference, prepared.rule.name
    if found is None:
        return {}
    why = "as chosen" if plan.rule_named else "the default for this reference"
    other = ""
    if rule == "classic" and found.runs is not None:
        other = "; the report also has what paired says of the reference's scores per sample"
    elif rule != "classic":
        other = "; the report also has what classic says"
    return {"judged_by": f"{rule}, {why}{other}"}


def _early_stop(plan: Plan, prepared: PreparedTask) -> dict[str, str]:
    """Return how alpha is split, if a paired rule may stop early."""
    if (
        plan.early_stop is None
        or prepared.reference is None
        or load_verdict_rule(prepared.rule.name).early_stop != "pairs"
    ):
        return {}
    alpha = prepared.hypothesis.alpha
    looks = SPENT_ON_LOOKS * alpha
    return {
        "early_stop": (
            f"alpha {looks:g} for the interim looks, {alpha - looks:g} for the verdict at"
            " the end of the run"
        )
    }


def _foresee_identity(plan: Plan, prepared: PreparedTask) -> dict[str, str]:
    """Return what is asked first if the plan accepts identity."""
    if not plan.accept_identical:
        return {}
    from serve_eval.evaluation.identity import foresee

    return {"accept_identical": foresee(plan, prepared)}


def _text(
    plan: Plan,
    commands: list[list[str]],
    files: dict[str, str],
    tasks: list[dict[str, Any]],
    cost: str,
) -> str:
    from serve_eval import yaml_source

    lines = ["plan:", *_indent(yaml_source.dump(msgspec.to_builtins(to_file(plan))))]
    lines += describe_preset(plan)
    if plan.preset is not None and not plan.preset.taken:
        lines.append(NOT_TAKEN)
    lines += list_commands(commands, files)
    for facts in tasks:
        lines.append(f"task {facts['task']}: {count(facts['requests'], 'request')}")
        shown = {
            key: value
            for key, value in facts.items()
            if key not in ("task", "requests", "data", "notes", "first_prompt")
        }
        for key, value in shown.items():
            if isinstance(value, dict):
                value = ", ".join(f"at most {most} to {name}" for name, most in value.items())
            if value is not None:
                lines.append(
                    f"  {key.replace('_', ' ')}:"
                    f" {f'{value:.3f}' if isinstance(value, float) else value}"
                )
        lines += [f"  note: {note}" for note in facts["notes"]]
        for file in facts["data"][:4]:
            lines.append(f"  data: {file.path} sha256 {file.sha256}")
        if len(facts["data"]) > 4:
            lines.append(f"  data: and {len(facts['data']) - 4} more files")
        prompt = facts["first_prompt"]
        text = prompt if isinstance(prompt, str) else _readable(prompt)
        lines += ["  first prompt:", *_indent(_ends(text), "    | ")]
    total = sum(facts["requests"] for facts in tasks)
    most = "at most " if plan.early_stop is not None or plan.accept_identical else ""
    judged = sum(number for facts in tasks for number in facts.get("judge_requests", {}).values())
    to_judges = f", and at most {judged} to judges" if judged else ""
    lines.append(f"{most}{count(total, 'request')} in total{to_judges}, {cost}; nothing was sent")
    return clean("\n".join(lines) + "\n")


def _readable(messages: Prompt) -> str:
    """Return messages as JSON, with media reduced to their type and size."""
    text = msgspec.json.format(msgspec.json.encode(messages), indent=2).decode()
    return re.sub(
        r'"(data:[\w/.+-]*;base64,|(?<="data": "))([^"]*)"',
        lambda data: f'"{data[1]}... ({len(data[2])} characters)"',
        text,
    )


def _ends(text: str) -> str:
    """Return a text, or the beginning and the end of one longer than SHOWN."""
    left_out = len(text) - SHOWN
    if left_out <= 0:
        return text
    mark = f"\n... {left_out} characters left out; --dump-prompts FILE writes them all ...\n"
    return f"{text[: SHOWN // 2]}{mark}{text[-SHOWN // 2 :]}"


def _indent(text: str, prefix: str = "  ") -> list[str]:
    return [prefix + line for line in text.rstrip("\n").split("\n")]


POWER = 0.8
"""Probability with which the least drop is proven, as in `serve-eval references power`."""


def takes_pairs(prepared: PreparedTask) -> bool:
    """Return True if a rule that compares pairs judges a task by a reference with scores."""
    reference, rule = prepared.reference, load_verdict_rule(prepared.rule.name)
    return reference is not None and reference.runs is not None and rule.early_stop == "pairs"


def plan_pairs(plan: Plan, prepared: PreparedTask, tests: int) -> dict[str, str]:
    """Return what groups and the flip rate of the reference leave of a task's prompts.

    `tests` is the number of paired tests of the run, which share alpha (Holm): the drop is that of
    the worst rank. Nothing is said of a drop without a flip rate, which one run does not show.
    """
    from serve_eval.stats.planning import find_least_drop
    from serve_eval.verdicts.reference_noise import measure_noise

    found = prepared.reference
    if found is None or not takes_pairs(prepared) or prepared.task.aggregation is not MEAN:
        return {}
    if (noise := measure_noise(prepared.dataset, found)) is None:
        return {}
    alone = max(1, round(noise.prompts / noise.effect))
    said = {}
    if noise.groups is not None:
        said["groups"] = (
            f"{noise.prompts} prompts in {noise.groups} groups tell a paired rule as much as"
            f" {alone} independent ones (design effect {noise.effect:.3g}, {noise.source})"
        )
    if noise.flip_rate is None:
        return said
    looks = SPENT_ON_LOOKS if plan.early_stop is not None else 0.0
    alpha = (1.0 - looks) * prepared.hypothesis.alpha / max(1, tests)
    flips = max(noise.flip_rate, 1.0 / noise.prompts)
    both = flips * (1.0 / noise.runs + 1.0 / plan.times(prepared.task.name)) / 2.0
    drop = find_least_drop(alone, both, alpha, 1.0 - POWER)
    of = f"at a flip rate of {flips:.3g}, that of the reference's {noise.runs} runs"
    said["proven_drop"] = (
        f"none with a probability of {POWER:g}, {of}"
        if drop is None
        else f"{100 * drop:.2f} points with a probability of {POWER:g}, {of}"
    )
    return said


PER_NODE = "gpus_per_node"
MOST_ON_A_MACHINE = 8
"""GPUs of the machines that people have, with few exceptions."""


def preview(plan: Plan, log_dir: Path) -> tuple[list[list[str]], dict[str, str]]:
    """Return the launcher's command lines, and the text of its files by path.

    Raises PlanError for invalid launcher options.
    """
    check_inherited(plan)
    launcher = load_launcher(plan.launcher.name)
    options = launcher.check_options(plan.launcher.options, "launcher")
    context = LaunchContext(
        model=plan.model,
        log_dir=log_dir,
        patience_s=plan.limits.sample_timeout_s,
        plan_file=msgspec.to_builtins(to_file(plan)),
    )
    files = {} if launcher.files is None else launcher.files(context, **options)
    return launcher.commands(context, **options), {str(path): text for path, text in files.items()}


def describe_size(plan: Plan, planned_nodes: int | None = None) -> str:
    """Return the nodes or GPUs that the servers need; "" if a machine with 8 GPUs is enough.

    `planned_nodes` are those that a recipe has for them. Raises PlanError for options that cannot
    be launched.
    """
    if plan.launcher.name == "slurm":
        return _describe_nodes(plan, planned_nodes)
    size = job_size(plan)
    if size.gpus_per_node <= MOST_ON_A_MACHINE:
        return ""
    return (
        f"the servers need {size.gpus_per_node} GPUs of one machine: the launcher slurm places"
        " servers and their ranks on several nodes"
    )


def _describe_nodes(plan: Plan, planned_nodes: int | None) -> str:
    launcher, told = plan.launcher, ""
    if launcher.options.get(PER_NODE) is None:  # The cluster is not asked.
        options = {**launcher.options, PER_NODE: MOST_ON_A_MACHINE}
        plan = replace(plan, launcher=replace(launcher, options=options))
        told = f" (of another number: launcher.{PER_NODE})"
    size = job_size(plan)
    other = planned_nodes not in (None, size.nodes)
    told += f"; the recipe has {planned_nodes}" if other else ""
    each = " each" if size.nodes > 1 else ""
    nodes = count(size.nodes, "node")
    need = f"the servers need {nodes} with {count(size.gpus_per_node, 'GPU')}{each}{told}"
    return need if size.nodes > 1 or other else ""


def list_commands(commands: Sequence[Sequence[str]], files: Mapping[str, str]) -> list[str]:
    """Return files and commands as text.

    Files are here-documents. Several commands run in the background, so that they run together.
    """
    found = []
    if files:
        found += [
            "files:",
            f"mkdir -p {join_words(sorted({str(Path(path).parent) for path in files}))}",
        ]
    for path, text in files.items():
        found += [f"cat > {quote_path(path)} <<'END'", text.rstrip("\n"), "END"]
    if commands:
        together = " &" if len(commands) > 1 else ""
        found += ["commands:", *(f"  {join_words(command)}{together}" for command in commands)]
    return found
