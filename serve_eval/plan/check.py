"""Check the values of a plan against each other, or refuse secrets or meaningless answers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from serve_eval.client.wire_format.finish_reasons import BREAK, PENDING, meaning
from serve_eval.errors import PlanError
from serve_eval.plan.command_line import TRUSTED
from serve_eval.plan.plan_file import LAUNCHERS, TASKS, VERDICTS, Problems, spec_of
from serve_eval.plan.shared_options import USUAL
from serve_eval.plugins import registry
from serve_eval.plugins.values import load_launcher, load_verdict_rule, rules_with_early_stop
from serve_eval.protocol import shared
from serve_eval.protocol.sampling_fields import MeaninglessSetting, find_meaningless
from serve_eval.schema import MOST_REPEATS, PathClaim, Plan, Spec, is_mutable
from serve_eval.secret_signs import ADVICE, Place, find_secrets, holds_secret
from serve_eval.shell_words import quote_path
from serve_eval.verdicts.repaired import read_policy


def check_specs(tasks: list[Spec], launcher: Spec, verdict: Spec, problems: Problems) -> None:
    """Check the names and options of tasks, launcher and verdict rule against the plugins."""
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
            own = rule.check_options(spec.options, "")
            read_policy(spec.options)
            if rule.check is not None:
                rule.check(**own)
        except PlanError as error:
            for problem in error.problems:
                option = re.match(r"(?:launcher)?\.([\w.-]+): (.*)", problem, re.DOTALL)
                said = option[2] if option else problem
                hint = f". {error.hint}" if error.hint else ""
                problems.add((*path, *option[1].split(".")) if option else path, f"{said}{hint}")


def check_values(
    values: Mapping[str, Any],
    sections: Mapping[str, Mapping[str, Any]],
    rule: str,
    problems: Problems,
    *,
    makes_references: bool = False,
) -> None:
    """Check numbers, the early stop and the folder of references.

    With `makes_references`, the command makes that folder if it is missing.
    """
    _check_counts(values, problems)
    for name, message in list_problems(values.get("expect", ())):
        problems.add(("expect", name), message)
    _check_early_stop(values.get("early_stop"), sections["limits"].get("order"), rule, problems)
    _check_limits(sections["limits"], problems)
    references_dir = values.get("references_dir")
    folder = Path(references_dir or ".").expanduser()
    if not folder.is_dir() and not (makes_references and can_be_made(folder)):
        problems.add(
            ("references_dir",),
            f"{folder.absolute()} is not a folder. Name a folder with <task>.yaml files, or make it"
            f" with: serve-eval references take {TRUSTED} -t TASK --references-dir"
            f" {quote_path(folder)}",
        )


def can_be_made(folder: Path) -> bool:
    """Return True if no file is where this folder and those around it belong."""
    place = next(one for one in (folder, *folder.absolute().parents) if os.path.lexists(one))
    return place.is_dir()


def _check_counts(values: Mapping[str, Any], problems: Problems) -> None:
    repeats = values.get("repeats", 1)
    numbers: dict[tuple[str, ...], Any] = {
        (name,): values.get(name, 1) for name in ("limit", "gpus")
    }
    if isinstance(repeats, Mapping):
        numbers |= {("repeats", name): times for name, times in repeats.items()}
    else:
        numbers["repeats",] = repeats
    for path, number in numbers.items():
        if number == USUAL:
            continue
        if number < 1:
            problems.add(path, f"must be 1 or more, not {number}")
        elif path[0] == "repeats" and number > MOST_REPEATS:
            problems.add(path, f"must be at most {MOST_REPEATS:,}, not {number:,}")


def _check_early_stop(
    eps: bool | float | None, order: str | None, rule: str, problems: Problems
) -> None:
    if eps is not None and not isinstance(eps, bool) and not 0.0 < eps < 1.0:
        problems.add(
            ("early_stop",), "must be true, false, or a probability between 0 and 1 such as 0.01"
        )
    if eps and order in ("prefix", "longest"):
        problems.add(("early_stop",), "needs the random order of samples: leave out limits.order")
    if eps and _never_stops_early(rule):
        known = ", ".join(rules_with_early_stop())
        problems.add(
            ("early_stop",),
            f"works with the rules {known}, not with {rule!r}: leave out one of the two",
        )


def _never_stops_early(rule: str) -> bool:
    try:
        return load_verdict_rule(rule).early_stop is None
    except PlanError:  # `check_specs` reports it
        return True


def _check_limits(limits: Mapping[str, Any], problems: Problems) -> None:
    for name, value in limits.items():
        if name == "known_finish_reasons":
            _check_reasons(value, problems)
            continue
        if isinstance(value, bool | str):
            continue
        from_zero = name in ("retry_budget", "order_seed", "outage_timeout_s", "page_samples")
        if not (0 < value < float("inf") or (from_zero and value == 0)):
            least = "0 or more" if from_zero else "above 0"
            problems.add(("limits", name), f"must be {least} and finite")
        elif name == "max_error_rate" and value > 1:
            problems.add(("limits", name), "must be at most 1, since it is a share of the samples")


def _check_reasons(reasons: Sequence[str], problems: Problems) -> None:
    for reason in reasons:
        if meaning(reason) in (BREAK, PENDING):
            problems.add(
                ("limits", "known_finish_reasons"),
                f"{reason!r} says that no whole answer came: such an attempt stays a failure",
            )


def check_repeats(
    given: object, file: Mapping[str, Any], tasks: list[Spec], problems: Problems
) -> None:
    """Check the task names of `repeats`. Tasks of the file that flags leave out are allowed."""
    if not isinstance(given, Mapping):
        return
    listed = file.get("tasks") if isinstance(file.get("tasks"), list) else []
    in_file = [spec_of(raw, TASKS, ("tasks",), Problems(lambda *path: "")) for raw in listed or []]
    known = {task.name for task in (*tasks, *in_file)}
    for name in given:
        if name not in known and not is_mutable(name):
            problems.add(
                ("repeats", name),
                f"is not a task of this run.{registry.nearest(name, sorted(known))}",
            )


def merge_expected(file: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the expectations of the file below those of the flag."""
    given, flags = file.get("expect"), settings.get("expect")
    if not isinstance(given, Mapping) or not isinstance(flags, Mapping):
        return dict(settings)
    return {**settings, "expect": {**given, **flags}}


def list_problems(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return each unknown name with a message."""
    known = [claim.value for claim in PathClaim]
    return [
        (name, f"unknown part of a path.{registry.nearest(name, known)} Known: {', '.join(known)}")
        for name in names
        if name not in known
    ]


def check_expected(expect: Mapping[str, bool]) -> None:
    """Raise PlanError for an unknown name in the expectations of a plan."""
    if problems := list_problems(expect):
        raise PlanError([f"expect.{name}: {message}" for name, message in problems])


TEXTS = frozenset(
    {"system_prompt", "system_messages", "prompt", "prompts", "prefix", "stop", "template"}
)
"""Options of tasks that are texts of prompts, which may be about passwords."""
NAMES = frozenset({"job_secret", "auth_key"})
"""Options of launchers that sound secret and hold a name or a choice."""


def check_secrets(
    values: Mapping[str, object],
    tasks: Iterable[Spec],
    launcher: Spec,
    verdict: Spec,
    problems: Problems,
) -> None:
    """Add a problem for each place that probably holds a secret, without its value.

    The address of the endpoint and the section `connection` have checks of their own.
    """
    for name, value in values.items():
        if isinstance(value, str) and holds_secret(value) and name != "base_url":
            problems.add((name,), ADVICE)
    for place in _in_options(launcher.options, NAMES | {"base_url"}):
        problems.add(("launcher", *place), ADVICE)
    for place in _in_options(verdict.options, frozenset()):
        problems.add(("verdict", *place), ADVICE)
    for i, task in enumerate(tasks):
        for place in _in_options(task.options, TEXTS):
            problems.add(("tasks", i, task.name, *place), ADVICE)


def _in_options(options: Mapping[str, object], free: frozenset[str]) -> Iterator[Place]:
    yield from find_secrets({name: value for name, value in options.items() if name not in free})


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
