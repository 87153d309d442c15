"""List the remarks about a check, which do not accuse the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from serve_eval.stats.instability import instability
from serve_eval.workflows.tools.answers import ToolPass
from serve_eval.workflows.tools.cells import measure_trigger
from serve_eval.workflows.tools.comparing import count_unequal

MOST = 300
"""Characters of a server's message at most."""


def list_remarks(
    passes: Sequence[ToolPass], reference: Sequence[ToolPass], lacking: Sequence[str]
) -> Iterator[str]:
    """Yield the remarks, the most important first."""
    for name in lacking:
        yield f"the server does not meet --require {name}"
    for one in passes:
        if one.failed:
            yield f"{one.name}: {one.failed} requests failed; they count as neither right nor wrong"
            yield from (f"{one.name}: {line}" for line in _say_failures(one))
        most = max((part.max_in_flight for part in one.report.loads), default=one.load)
        if most < one.load:
            yield f"{one.name}: at most {most} requests were in flight"
        silent = sum(not answer.usage.completion_tokens for answer in one.answers.values())
        if silent:
            yield f"{one.name}: {silent} of {len(one.answers)} answers have no token counts"
    yield from _compare_forms(passes)
    yield from _say_cochran(passes)
    yield from _compare_triggers(passes, reference)


def _say_failures(one: ToolPass) -> Iterator[str]:
    """Yield the most frequent failure, in the words of the server."""
    said = Counter(" ".join(failure.message.split()) for failure in one.failures.values())
    for message, count in said.most_common(1):
        yield f"{count} of them: {message[:MOST]}"


def _compare_forms(passes: Sequence[ToolPass]) -> Iterator[str]:
    """Yield how many streamed answers differ from the whole ones."""
    known = {(one.form, one.load): one.answers for one in passes}
    for form, load in known:
        if form == "stream" and ("whole", load) in known:
            unequal, both = count_unequal(known["whole", load], known["stream", load])
            yield f"{load} in flight: {unequal} of {both} streamed answers differ from the whole"


def _say_cochran(passes: Sequence[ToolPass]) -> Iterator[str]:
    """Yield Cochran's Q of the answers without an error, over the loads of each form."""
    for form in ("whole", "stream"):
        here = [one.answers for one in passes if one.form == form]
        prompts = [p for p in here[0] if all(p in answers for answers in here)] if here else []
        if len(here) < 2 or not prompts:
            continue
        found = instability([[float(not a[p].faults) for p in prompts] for a in here])
        if found.cochran_q is not None and found.p is not None:
            yield (
                f"Cochran's Q over the loads, {form}: {found.cochran_q:.1f}, {found.df} degrees of"
                f" freedom, p = {found.p:.1g}"
            )


def _compare_triggers(passes: Sequence[ToolPass], reference: Sequence[ToolPass]) -> Iterator[str]:
    earlier = {(one.form, one.load): one.answers for one in reference}
    for one in passes:
        if (one.form, one.load) in earlier:
            found = measure_trigger(one.answers, earlier[one.form, one.load])
            yield (
                f"{one.name}: calls against the reference: precision {found.precision:.3f}, recall"
                f" {found.recall:.3f}, F1 {found.f1:.3f}"
            )
