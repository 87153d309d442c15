"""Yield the rows about a comparison, each a label with a text, for terminal and page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from serve_eval.evidence.answer_texts import (
    describe_first_divergences,
    draw_first_divergences,
    read_first_divergences,
)
from serve_eval.evidence.self_flips import conclusion, describe_repeated, name_p
from serve_eval.report.lines import (
    anchors_text,
    describe_agreement,
    describe_repeats,
    seconds,
)
from serve_eval.report.summary import Row, SummaryTask, brief, describe_answers, name_expected
from serve_eval.schema import (
    Agreement,
    ChangedAnswers,
    ComparedSide,
    ComparedTask,
    Comparison,
    Flip,
    Parting,
    SelfFlips,
    TokenEquality,
)
from serve_eval.workflows.compare.changed import describe_changed

MORE_FLIPS = "more_flips: "
"""The beginning of a warning which says in other words what the row `differs` says."""


def summarise_compared(task: ComparedTask) -> SummaryTask:
    """Return what a summary needs of a task: B is judged, and A is the reference."""
    return SummaryTask(
        result=task.b,
        verdict=task.verdict,
        before=task.a.breakdown,
        names=("B", "A"),
        default_rule="paired",
        resume="the same serve-eval compare",
    )


def describe_task(task: ComparedTask) -> Iterator[Row]:
    """Yield what decides about a task, and that only a comparison knows."""
    if task.a.doubted:
        yield "asked", f"A: {describe_answers(task.a)}"
    yield from _drop(task)
    yield from _difference(task)
    if task.exact is not None:
        for line in describe_equality(task.exact):
            yield "" if line.startswith(" ") else "tokens", line


def describe_agreement_of(task: ComparedTask) -> Iterator[Row]:
    """Yield the counts behind the differences of a task, and the service of both sides."""
    if task.a.stability is not None:
        yield "repeats", f"A: {describe_repeats(task.a)}"
        yield "spread", f"A: {describe_agreement(task.a.stability)}"
    if (told := task.verdict.paired) is not None and told.anchors is not None:
        line = anchors_text(told.anchors, told.candidate_runs)
        yield "anchors", line.replace("reference run", "run of A")
    yield from _answers(task)
    yield from _first_differences(task)
    yield from _describe_service(task)


def describe_sides(comparison: Comparison) -> Iterator[Row]:
    """Yield what is compared, and in which servers the sides differ."""
    a, b = comparison.a, comparison.b
    for name, side in (("A", a), ("B", b)):
        yield name, _side(side)
        if side.lateness is not None:
            from serve_eval.report.run.document import describe_lateness

            yield name, describe_lateness(side.lateness)
    for name, side, other in (("A", a, b), ("B", b, a)):
        yield from (
            (name, f"{kind}: {what}")
            for kind, what in side.servers.items()
            if other.servers.get(kind) != what
        )
    if a.hidden_retries or b.hidden_retries:
        retries = f"A | B: {_retries(a)} | {_retries(b)}"
        yield "retries", f"hidden retries of the orchestrator, {retries}"


def list_warnings(comparison: Comparison) -> Iterator[str]:
    """Yield the warnings about both sides and about the comparison."""
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        yield from (f"{name}: {warning}" for warning in side.warnings)
    yield from comparison.warnings


def _side(side: ComparedSide) -> str:
    where = side.base_url or "not asked"
    rate = "" if side.per_second is None else f", {side.per_second:.3g} answers per second"
    version = "" if side.version is None else f", version {side.version}"
    return f"{side.model or 'model not known'} at {where}{version}{rate}, run folder {side.folder}"


def _retries(side: ComparedSide) -> str:
    return (
        ", ".join(f"{kind} {count}" for kind, count in side.hidden_retries.items()) or "not counted"
    )


def _drop(task: ComparedTask) -> Iterator[Row]:
    """Yield what the paired comparison excludes."""
    if (told := task.verdict.paired) is None:
        return
    kept = ", and so is a rise of that size" if told.equivalent else ""
    no = "is" if told.noninferior else "is not"
    here = " on these prompts" if min(told.reference_runs, told.candidate_runs) > 1 else ""
    yield "margin", f"a drop of {told.margin:.3f} points{here} {no} excluded{kept}"


def _describe_requests(changed: ChangedAnswers) -> Iterator[Row]:
    """Yield the counts, which are the reason of a FAIL, or an example of a difference."""
    if not changed.more:
        yield "differs", describe_changed(changed)
    elif changed.examples:
        prompt, place = next(iter(changed.examples.items()))
        yield "e.g.", f"{prompt}: after {place.before!r}, A says {place.a!r} and B {place.b!r}"


def _difference(task: ComparedTask) -> Iterator[Row]:
    """Yield whether B differs from A more than one of them from itself, with the counts and p."""
    told, agreed = task.itself, task.agreement
    if task.changed is not None:
        yield from _describe_requests(task.changed)
        return
    if told is None:
        if agreed.prompts:
            counted = f"{agreed.counted - agreed.identical} of {_count_pairs(agreed)} differ"
            unknown = task.unmeasured or "no side was asked twice, so its own noise is not known"
            yield "differs", f"answers of A and B: {counted}; {unknown}"
        return
    one, other = ("A", "B") if told.endpoint == "A" else ("B", "A")
    more = "more" if told.more else "no more"
    head = f"{other} differs from {one} {more} than {one} from itself"
    if told.repeats is not None:
        yield "differs", f"{head}: {describe_repeated(told)} ({name_p(told)})"
        return
    by_text = told.other_texts is not None and told.measure != "score"
    across, own = (told.other_texts, told.own_texts) if by_text else (told.other, told.own)
    what = "texts" if by_text else "scores"
    limit = "" if by_text or told.other_texts is not None else "; texts were not compared"
    yield (
        "differs",
        f"{head}: {across} of {told.prompts} {what} against {own} (p {told.p:.2g}){limit}",
    )


def _answers(task: ComparedTask) -> Iterator[Row]:
    """Yield how far the answers of both sides agree, and those of the side that was asked twice."""
    parted = task.text_places
    where = (
        ""
        if parted is None
        else f"; {parted.texts} first differ at character {parted.median_character:g} (median;"
        f" {parted.median_share:.0%} of the longer text), {parted.at_start} at the first one"
    )
    if task.agreement.prompts:
        yield "texts", f"{_agreement(task.agreement)}{where}"
    if task.itself is not None:
        yield "noise", _itself(task.itself, task.agreement)
    yield from _effects(task)


def _effects(task: ComparedTask) -> Iterator[Row]:
    """Yield how often each side differs from itself, next to how often A differs from B."""
    own = [
        f"{name} from itself on {_differing(agreed)}"
        for name, agreed in zip("AB", task.own, strict=True)
        if agreed is not None and agreed.prompts
    ]
    if own and task.agreement.prompts:
        said = f"{', '.join(own)}, A from B on {_differing(task.agreement)}"
        yield "differ", f"answers differ: {said}"


def _differing(agreed: Agreement) -> str:
    share = agreed.different / agreed.counted
    return f"{agreed.different} of {_count_pairs(agreed)} ({share:.1%})"


def _count_pairs(agreed: Agreement) -> str:
    """Return the number of prompts with one pair of answers each, or of pairs of answers."""
    return f"{agreed.counted}" if agreed.pairs is None else f"{agreed.counted} pairs of answers"


def _describe_service(task: ComparedTask) -> Iterator[Row]:
    """Yield latencies and token counts of both sides."""
    for what, pick in (
        ("latency", "latency_s"),
        ("first token", "ttft_s"),
        ("per token", "tpot_s"),
    ):
        times = [getattr(traffic, pick) for traffic in task.traffic]
        if all(times):
            shown = " | ".join(
                ", ".join(f"{key} {seconds(value)}" for key, value in one.items()) for one in times
            )
            yield "speed", f"{what}, A | B: {shown}"
    tokens = [traffic.completion_tokens for traffic in task.traffic]
    if any(tokens):
        yield "length", f"generated tokens, A | B: {tokens[0]} | {tokens[1]}"


def _first_differences(task: ComparedTask) -> Iterator[Row]:
    """Yield the kinds of the first different tokens of the flips."""
    if kinds := Counter(flip.divergence.kind for flip in task.flips if flip.divergence is not None):
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        why = next(
            (f.divergence.why for f in task.flips if f.divergence is not None and f.divergence.why),
            "",
        )
        because = f" ({why})" if why else ""
        yield "flips", f"first different tokens of {kinds.total()} flips: {counts}{because}"


def _agreement(agreed: Agreement) -> str:
    return (
        f"{agreed.identical} of {_count_pairs(agreed)} identical, {agreed.same_answer} with the"
        f" same answer, {agreed.different} different"
    )


def _itself(told: SelfFlips, agreed: Agreement) -> str:
    one, other = ("A", "B") if told.endpoint == "A" else ("B", "A")
    if told.repeats is not None:
        return f"{describe_repeated(told)} ({name_p(told)}, {conclusion(told)})"
    unknown = ""
    if one == "B" and (told.own or told.own_texts):
        unknown = "; A was asked once, so whether A is steadier is not known"
    own, across = (
        f"{scores} scores" + ("" if spoken is None else f" and {spoken} texts")
        for scores, spoken in ((told.own, told.own_texts), (told.other, told.other_texts))
    )
    seeded = "" if agreed.pairs is None else ", first answers only, with their seeds"
    return (
        f"{one} asked twice{seeded}: {own} of {told.prompts} prompts differ; compared with {other}:"
        f" {across} ({name_p(told)}, {conclusion(told)}); texts of {one} and {one}:"
        f" {_agreement(told.agreement)}{unknown}"
    )


def describe_flip(task: str, flip: Flip) -> list[Row]:
    """Return the scores, the answers and the first difference of a flip."""
    before, after = flip.scores
    of_a, of_b = ("nothing readable" if one is None else brief(one) for one in flip.answers)
    expected = brief(name_expected(task, flip.target))
    rows = [
        (
            "e.g.",
            f"{flip.id}: A answered {of_a}, B answered {of_b}, expected {expected}"
            f" (scores {before:g} and {after:g})",
        )
    ]
    if (place := flip.first_difference) is not None:
        start = f"from character {place.character} (word {place.word}) on"
        rows += [("", f"{start}:"), ("", f"A: {place.a!r}"), ("", f"B: {place.b!r}")]
    looked = flip.divergence
    if looked is not None and looked.tokens is not None and looked.gaps is not None:
        (x, y), (at_a, at_b) = looked.tokens, looked.gaps
        rows.append(
            (
                "",
                f"token {looked.token}: {x!r} | {y!r}, preferred by {at_a:.3f} | {at_b:.3f} nats:"
                f" {looked.kind}",
            )
        )
    return rows


SHOWN = 3
"""Different answers that are printed; comparison.json has more."""
LEAST_DRAWN = 4
"""Places that a histogram needs."""
ALPHA = 0.05
"""Chance that a share of different answers above the printed one shows no difference."""
_COUNTS = {
    "compared": "texts, and the numbers of generated tokens",
    "none": "texts, since no numbers of generated tokens are reported",
    "otherwise": "texts, since A and B count the generated tokens of equal texts otherwise",
}


def describe_equality(found: TokenEquality) -> Iterator[str]:
    """Yield the lines about the equality of a task; those that begin with a space belong together.

    Without differences, the first line has the share of different answers that is excluded.
    """
    same = found.answers - found.different - found.other_counts
    line = f"equal tokens: {same} of {found.answers} answers ({_COUNTS[found.counts]})"
    if found.missing:
        line += f"; {found.missing} are missing on a side"
    if found.answers and same == found.answers:
        share = 1.0 - ALPHA ** (1.0 / found.answers)
        line += f"; that excludes a share of {share:.1%} or more that differ (95 %)"
    yield line
    if found.other_counts:
        yield f"{found.other_counts} equal texts have another number of tokens"
    if (places := found.places) is not None:
        more = f"; {found.different - places.parted} more: not asked again for their tokens"
        unknown = more if places.unit == "token" and places.parted < found.different else ""
        yield f"different texts part at {describe_first_divergences(places)}{unknown}"
        if places.parted >= LEAST_DRAWN and places.at_usual < places.parted:
            yield from draw_first_divergences(places)
        if reading := read_first_divergences(places):
            yield f"{describe_first_divergences(places)}: {reading}"
    for prompt, parting in [*found.partings.items()][:SHOWN]:
        yield from _show(prompt, parting)


def _show(prompt: str, parting: Parting) -> Iterator[str]:
    place = f"word {parting.word}" if parting.token is None else f"token {parting.token}"
    yield f"{prompt}: parts at {place}, after {parting.before!r}"
    yield f"  A: {parting.a!r}"
    yield f"  B: {parting.b!r}"
