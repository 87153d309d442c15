"""Name the property that more answers have than those to compare with, as a likely cause. Pure.

Wrong answers that are cut, empty or unreadable are a cause of a lower value only where the
reference, or the other side, has fewer of them. Of a published value, all wrong answers are known
by number: no more of them can have the property.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from serve_eval.schema import Cut, Outcome, TaskResult, Verdict
from serve_eval.verdicts.wrong_at_most import count_wrong_at_most

MANY = 0.05
"""Share of the samples from which an ending is a likely cause of a bad value."""
_AT_LIMIT = "cut off at max_tokens"
_SILENT = (
    "cut off by a stop string",
    "ended within the reasoning",
    "empty",
    "unreadable",
)
"""Properties of answers in which no result was found, so that each of them is wrong."""


def list_counted(
    result: TaskResult, verdict: Verdict, before: TaskResult | None = None
) -> Iterator[str]:
    """Yield the property of which there is the largest surplus, if it is large.

    `before` is the result of the side to compare with (None: the reference of the verdict).
    """
    planned, counts = max(1, result.planned), _count(result)
    if before is None:
        there = _find_most(result, verdict)
    else:
        share = planned / max(1, before.planned)
        there = {name: n * share for name, n in _count(before).items()}
    surplus = {name: counts[name] - n for name, n in there.items()}
    if result.doubted:
        surplus[_REPAIRED] = result.doubted
        counts[_REPAIRED] = result.doubted
    if not surplus:
        return
    most = max(surplus, key=lambda name: surplus[name])
    if surplus[most] > MANY * planned:
        yield f"{counts[most]} of {result.planned} answers {most}"


_REPAIRED = "repaired, so that their first answers are unknown"
_BY_WINDOW = "cut off by the server's window"


def _count(result: TaskResult) -> dict[str, float]:
    return {
        _AT_LIMIT: result.cut.get(Cut.MAX_TOKENS, 0),
        _BY_WINDOW: result.cut.get(Cut.WINDOW, 0),
        "cut off by a stop string": result.cut.get(Cut.STOP_STRING, 0),
        "ended within the reasoning": result.stopped_in_reasoning,
        "looping": result.looping,
        "empty": result.outcomes.get(Outcome.EMPTY, 0),
        "unreadable": result.unparsed,
    }


def _find_most(result: TaskResult, verdict: Verdict) -> Mapping[str, float]:
    """Return how many answers of the reference have a property at most, as far as that is known."""
    found: dict[str, float] = {}
    effect = verdict.cut
    if effect is not None and effect.reference_cut is not None and effect.reference_answers:
        cut = effect.reference_cut * result.planned / effect.reference_answers
        found = {_AT_LIMIT: cut, _BY_WINDOW: cut}
    if verdict.reference is None:
        return found
    wrong = count_wrong_at_most(result.metric, verdict.reference, result.planned, graded=False)
    return found if wrong is None else {**dict.fromkeys(_SILENT, wrong), **found}
