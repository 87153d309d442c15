"""Name what differs between two sides that were asked by different routes.

The same prompts can reach the model in another template, with or without thoughts before the
answer, and answers can be counted or cut at their ends in another way. Sampling defaults are
compared for all sides, by the probes of both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from serve_eval.schema import CHAT_ROUTES, Report, Response
from serve_eval.storage import journal
from serve_eval.storage.file_names import samples_file

_Answers = Mapping[str, Response]


def describe_routes(a: tuple[Path, Report], b: tuple[Path, Report]) -> Iterator[str]:
    """Yield a warning for each difference, if the chat prompts of both sides had other routes."""
    here, there = (CHAT_ROUTES[report.plan.connection.route] for _, report in (a, b))
    if here is there:
        return
    yield f"route: A was asked by /v1{here}, and B by /v1{there}"
    yield from _compare_unknown(a[1], b[1])
    names = [task.result.task for task in a[1].tasks]
    others = {task.result.task for task in b[1].tasks}
    for name in (name for name in names if name in others):
        first, other = (_read(folder, name) for folder, _ in (a, b))
        common = [one for one in first if one in other]
        pairs = [(first[one], other[one]) for one in common]
        if pairs:
            yield from (f"route, {name}: {line}" for line in _differences(pairs))


def _compare_unknown(a: Report, b: Report) -> Iterator[str]:
    """Yield why the sampling defaults of one side alone are not known."""
    why = [one.sampling_defaults and one.sampling_defaults.unknown for one in (a, b)]
    for name, reason, other in (("A", *why), ("B", *reversed(why))):
        if reason and other is not None and not other:
            yield f"route: the sampling defaults of {name} are not known: {reason}"


def _read(folder: Path, task: str) -> _Answers:
    """Return the answers of a task by sample; repeats are samples of their own."""
    records = journal.read(samples_file(folder, task))
    return {one.id: one.response for one in records if one.response is not None}


def _differences(pairs: list[tuple[Response, Response]]) -> Iterator[str]:
    spaces = sum(x.text != y.text and x.text.strip() == y.text.strip() for x, y in pairs)
    if spaces:
        yield f"spaces: {spaces} of {len(pairs)} texts differ only in spaces at their ends"
    yield from _compare_prompts(pairs)
    thinking = [sum(bool(one.reasoning) for one in side) for side in zip(*pairs, strict=True)]
    if thinking[0] != thinking[1]:
        yield f"thoughts: {thinking[0]} of {len(pairs)} answers of A have some, {thinking[1]} of B"
    cut = [sum(one.truncated for one in side) for side in zip(*pairs, strict=True)]
    if cut[0] != cut[1]:
        yield f"cut answers: {cut[0]} of {len(pairs)} of A, {cut[1]} of B"


def _compare_prompts(pairs: list[tuple[Response, Response]]) -> Iterator[str]:
    """Yield what the token counts of the same prompts say of the templates of both routes."""
    counts = [(x.usage.prompt_tokens, y.usage.prompt_tokens) for x, y in pairs]
    silent = [
        name for name, side in zip("AB", zip(*counts, strict=True), strict=True) if not any(side)
    ]
    if silent:
        yield f"counts: {' and '.join(silent)} counts no tokens, so templates are not compared"
        return
    more = [there - here for here, there in counts if here and there]
    if unlike := sum(one != 0 for one in more):
        median = statistics.median(more)
        yield (
            f"template: {unlike} of {len(more)} prompts have other token counts, B {median:+g} at"
            " the median"
        )
