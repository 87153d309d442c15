"""Check the metrics of a file by which answers are judged.

Each has its prompt and a function that reads its verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from msgspec import Struct

from serve_eval.errors import PlanError
from serve_eval.plugins.registry import nearest
from serve_eval.schema import Message
from serve_eval.scorers import _judge_prompts as prompts
from serve_eval.scorers._judge_verdict import reader


class MetricEntry(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A metric as a file has it.

    It is judged by the `criterion` in a prompt of ours, or by a user's `prompt` with ${answer}, and
    optionally ${prompt} and ${expected}; with neither, by the built-in metric of that `name`.

    The verdict is one of the words `success` and `failure`, or a number from 0 to `points`;
    `pattern` finds it in what the judge says (None: on a last line of ours, which the judge is
    asked for). `inverted`: success, or many points, is bad (None: as built in).
    """

    name: str
    criterion: str | None = None
    prompt: str | None = None
    success: tuple[str, ...] = ("yes",)
    failure: tuple[str, ...] = ("no",)
    points: float | None = None
    pattern: str | None = None
    inverted: bool | None = None


@dataclass(frozen=True, slots=True)
class JudgeMetric:
    """A valid metric. `part` is the name of its mean in the report."""

    name: str
    part: str
    needs_expected: bool
    ask: Callable[[prompts.Material], tuple[Message, ...]]
    read: Callable[[str], float | None]


def metrics(entries: Sequence[str | MetricEntry]) -> tuple[list[JudgeMetric], list[str]]:
    """Return the metrics of a file, and what is wrong with them."""
    found: list[JudgeMetric] = []
    problems = [] if entries else ["judge.metrics: name at least one"]
    for i, given in enumerate(entries):
        entry = MetricEntry(name=given) if isinstance(given, str) else given
        wrong = list(_problems(entry))
        if any(metric.name == entry.name for metric in found):
            wrong.append(f"name: {entry.name!r} is listed twice")
        try:
            if not wrong:
                found.append(_metric(entry))
        except PlanError as error:
            wrong = error.problems
        problems += [f"judge.metrics[{i}].{problem}" for problem in wrong]
    return found, problems


def _problems(entry: MetricEntry) -> Iterator[str]:
    if not entry.name or any(c.isspace() or not c.isprintable() for c in entry.name):
        yield "name: must be a word without spaces"
    if entry.criterion is not None and entry.prompt is not None:
        yield "criterion: belongs to our own prompt; leave it out if you give a prompt"
    if entry.criterion is None and entry.prompt is None and entry.name not in prompts.BUILT_IN:
        hint = nearest(entry.name, prompts.BUILT_IN)
        yield (f"name: {entry.name!r} is not built in, and has neither criterion nor prompt.{hint}")
    if entry.prompt is not None:
        yield from (f"prompt: {problem}" for problem in prompts.problems(entry.prompt))


def _metric(entry: MetricEntry) -> JudgeMetric:
    """Return the metric. Raises PlanError for a verdict that cannot be read."""
    prompt, criterion = entry.prompt, entry.criterion
    if prompt is not None:
        usual = prompts.BuiltIn("", needs_expected=prompts.asks_for_expected(prompt))
    else:
        usual = prompts.BUILT_IN[entry.name] if criterion is None else prompts.BuiltIn(criterion)
    inverted = usual.inverted if entry.inverted is None else entry.inverted
    read = reader(entry.success, entry.failure, entry.points, entry.pattern, inverted=inverted)
    ending = (
        ""
        if entry.pattern
        else prompts.describe_ending(entry.success[0], entry.failure[0], entry.points)
    )

    def ask(texts: prompts.Material) -> tuple[Message, ...]:
        if prompt is not None:
            return prompts.by_prompt(prompt, texts, ending)
        return prompts.by_criterion(usual.criterion, texts, ending)

    part = f"{entry.name}_inverted" if inverted else entry.name
    return JudgeMetric(
        name=entry.name, part=part, needs_expected=usual.needs_expected, ask=ask, read=read
    )
