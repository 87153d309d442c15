"""Apply --set NAME.OPTION=VALUE to the tasks, the launcher or the verdict rule of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from serve_eval.evaluation.plan.parse import Problems
from serve_eval.plugins import registry
from serve_eval.schema import Spec


def apply_setting(
    text: str, tasks: list[Spec], launcher: Spec, verdict: Spec, problems: Problems
) -> tuple[list[Spec], Spec, Spec]:
    """Apply one NAME.OPTION=VALUE.

    The value is YAML, so `null`, numbers and [lists] have their usual meaning.
    """
    import yaml

    target, _, raw = text.partition("=")
    name, _, option = target.rpartition(".")  # names may contain dots, options of tasks do not
    if target.startswith("launcher."):
        name, _, option = target.partition(".")
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError:
        value = raw
    if not name or not all(option.split(".")) or "=" not in text:
        problems.add(
            ("set",),
            f"expected NAME.OPTION=VALUE such as gsm8k.num_samples=100, not {text!r}; NAME is a"
            " task of this run, launcher or verdict",
        )
    elif name == "launcher":
        launcher = Spec(
            name=launcher.name,
            options=_with_set(launcher.options, option.split("."), value, problems),
        )
    elif name == "verdict":
        verdict = Spec(name=verdict.name, options={**verdict.options, option: value})
    elif name in {task.name for task in tasks}:
        tasks = [
            (
                Spec(name=task.name, options={**task.options, option: value})
                if task.name == name
                else task
            )
            for task in tasks
        ]
    else:
        known = [*(task.name for task in tasks), "launcher", "verdict"]
        problems.add(
            ("set",), f"{name!r} is not a task of this run.{registry.nearest(name, known)}"
        )
    return tasks, launcher, verdict


def _with_set(
    options: Mapping[str, object],
    path: Sequence[str],
    value: object,
    problems: Problems,
    before: str = "launcher",
) -> dict[str, object]:
    """Return the options with one of them set. `path` may lead into nested options."""
    name, *below = path
    if not below:
        return {**options, name: value}
    found = options.get(name)
    if found is not None and not isinstance(found, Mapping):
        problems.add(
            ("set",), f"{before}.{name} is {found!r} in this plan, and has no options to set"
        )
        return dict(options)
    return {**options, name: _with_set(found or {}, below, value, problems, f"{before}.{name}")}
