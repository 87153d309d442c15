"""By what an answer is judged: the metrics of a file, checked, each with its prompt and how its
verdict is read.
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
    """What is judged: by the `criterion` in a prompt of ours, or by a `prompt` of one's own with
    ${answer}, and ${prompt} and ${expected} where wanted; with neither, by the built-in metric of
    that `name`.

    The verdict is one of the words `success` and `failure`, or a number from 0 to `points`;
    `pattern` finds it in what the judge says (None: a last line of ours, which the judge is told).
    `inverted`: success, or many points, is bad (None: as built in).
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
    """A metric that was found valid. `part` is what its mean is called in the report."""

    name: str
    part: str
    needs_expected: bool
    ask: Callable[[prompts.Material], tuple[Message, ...]]
    read: Callable[[str], float | None]


def metrics(entries: Sequence[str | MetricEntry]) -> tuple[list[JudgeMetric], list[str]]:
    """The metrics of a file, and what is wrong with them."""
    found: list[JudgeMetric] = []
    problems = [] if entries else ["judge.metrics: name at least one"]
    for i, given in enumerate(entries):
        entry = MetricEntry(name=given) if isinstance(given, str) else given
        wrong = list(_problems(entry))
        if any(metric.name == entry.name for metric in found):
            wrong.append(f"name: {entry.name!r} stands there twice")
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
        yield "criterion: stands in a prompt of ours; leave it out beside a prompt of your own"
    if entry.criterion is None and entry.prompt is None and entry.name not in prompts.BUILT_IN:
        hint = nearest(entry.name, prompts.BUILT_IN)
        yield (
            f"name: {entry.name!r} is not built in, and there is no criterion and no prompt.{hint}"
        )
    if entry.prompt is not None:
        yield from (f"prompt: {problem}" for problem in prompts.problems(entry.prompt))


def _metric(entry: MetricEntry) -> JudgeMetric:
    """Raises PlanError for a verdict that cannot be read."""
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
