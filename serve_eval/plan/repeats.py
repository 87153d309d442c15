"""Read how often each prompt is asked: a number, or the one that is usual for a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from serve_eval.cases.planned import PlannedCases
from serve_eval.plan.flag_values import USUAL, Times
from serve_eval.protocol.shared import find_usual_repeats
from serve_eval.schema import Plan, is_mutable


def read_repeats(
    given: Times | Mapping[str, Times] | None, with_cases: PlannedCases
) -> dict[str, Any]:
    """Return the number of repeats as fields of a plan.

    A single number applies to all tasks. Otherwise a task uses the number of the plan, or of its
    case file. The plan has the number that is usual, not the word.
    """
    if isinstance(given, int):
        return {"repeats": given}
    names = {task.name for task in with_cases.tasks}
    if given == USUAL:
        given = dict.fromkeys(names - with_cases.iterations.keys(), USUAL)
    told = {**with_cases.iterations, **(given or {})}
    numbers = {
        name: (_find_usual(name) or 1) if times == USUAL else times
        for name, times in told.items()
        if name in names
    }
    return {"repeats_of": {name: times for name, times in numbers.items() if times > 1}}


def _find_usual(name: str) -> int | None:
    return None if is_mutable(name) else find_usual_repeats(name)


def note_repeats(given: Times | Mapping[str, Times] | None, plan: Plan) -> Iterator[str]:
    """Yield what is usual for tasks whose repeats were not chosen."""
    if given == USUAL and not plan.repeats_of:
        yield "no task of this run is usually asked several times: each prompt is asked once"
    for task in plan.tasks if given == USUAL else ():
        if plan.times(task.name) > 1 and not task.options.get("temperature"):
            yield (
                f"{task.name}: at temperature 0 a server may answer alike each time; set the"
                " sampling of the model's card (--temperature, protocol.top_p)"
            )
    for task in plan.tasks if given is None else ():
        if (usual := _find_usual(task.name)) is not None and plan.times(task.name) == 1:
            yield (
                f"{task.name}: models are usually compared by avg@{usual}; --repeats usual asks"
                f" each prompt {usual} times instead of once"
            )
