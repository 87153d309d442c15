"""Print a comparison: the verdict, the flips in both directions, and how close the tokens were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from serve_eval.evaluation.agreement.words import conclusion
from serve_eval.evaluation.storage.file_names import COMPARISON
from serve_eval.report.layout import fit_tables, say
from serve_eval.report.lines import anchors_text, describe_paired, seconds
from serve_eval.report.terminal import RED, attribution, diagnose_hint
from serve_eval.schema import (
    Agreement,
    ComparedSide,
    ComparedTask,
    Comparison,
    Flip,
    SelfFlips,
    VerdictOutcome,
    is_mutable,
)
from serve_eval.workflows.compare.exact_text import describe_equality
from serve_eval.workflows.compare.places import draw_places

SHOWN = 5
"""Number of flips printed with their texts; comparison.json has more."""
_COLUMNS = ("task", "n", "A", "B", "difference", "worse", "better", "identical", "verdict")
_STYLES = {
    VerdictOutcome.PASS: "bold green",
    VerdictOutcome.FAIL: "bold red",
    VerdictOutcome.ERROR: "bold red",
}


def render(comparison: Comparison, out_dir: Path, console: Console) -> None:
    """Print the table of verdicts and its explanation."""
    for line in _about_sides(comparison):
        say(console, line)
    console.print(
        *fit_tables(_COLUMNS, list(map(_cells, comparison.tasks)), console.width), sep="\n\n"
    )
    for task in comparison.tasks:
        _explain(task, console)
    for line in _warnings(comparison):
        say(console, line)
    say(console, f"comparison: {out_dir / COMPARISON}")
    if any(task.verdict.outcome in RED for task in comparison.tasks):
        say(console, diagnose_hint(out_dir))


def _about_sides(comparison: Comparison) -> Iterator[str]:
    """Yield what is compared, and in which servers the sides differ."""
    a, b = comparison.a, comparison.b
    for name, side in (("A", a), ("B", b)):
        yield f"{name}: {_side(side)}"
    for name, side, other in (("A", a, b), ("B", b, a)):
        yield from (
            f"{name}: {kind}: {what}"
            for kind, what in side.servers.items()
            if other.servers.get(kind) != what
        )
    if a.hidden_retries or b.hidden_retries:
        yield f"hidden retries of the orchestrator, A | B: {_retries(a)} | {_retries(b)}"


def _warnings(comparison: Comparison) -> Iterator[str]:
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        yield from (f"warning: {name}: {warning}" for warning in side.warnings)
    yield from (f"warning: {warning}" for warning in comparison.warnings)


def _side(side: ComparedSide) -> str:
    where = side.base_url or "not asked"
    rate = "" if side.per_second is None else f", {side.per_second:.3g} answers per second"
    version = "" if side.version is None else f", version {side.version}"
    return f"{side.model or 'model not known'} at {where}{version}{rate}, run folder {side.folder}"


def _retries(side: ComparedSide) -> str:
    return (
        ", ".join(f"{kind} {count}" for kind, count in side.hidden_retries.items()) or "not counted"
    )


def _cells(task: ComparedTask) -> list[Text]:
    outcome = task.verdict.outcome
    return [*map(Text, _row(task)), Text(outcome.value, style=_STYLES.get(outcome, "bold yellow"))]


def _row(task: ComparedTask) -> list[str]:
    agreed = task.agreement
    share = f"{agreed.identical / agreed.prompts:.1%}" if agreed.prompts else "-"
    paired = task.verdict.paired
    difference = "-" if paired is None else f"{paired.difference:+.3f}"
    values = ["-" if value is None else f"{value:.3f}" for value in (task.a.value, task.b.value)]
    return [
        task.task,
        str(task.a.planned),
        *values,
        difference,
        str(task.worse),
        str(task.better),
        share,
    ]


def _explain(task: ComparedTask, console: Console) -> None:
    """Print the details behind the row of a task."""
    for line in (*_drop(task), *_answers(task), *_service(task), *_first_differences(task)):
        say(console, f"{task.task}: {line}")
    if task.exact is not None:
        for line in describe_equality(task.exact):
            say(console, line if line.startswith(" ") else f"{task.task}: {line}")
    for flip in task.flips[:SHOWN]:
        _flip(task.task, flip, console)
    left = task.worse + task.better - min(SHOWN, len(task.flips))
    if left > 0 and task.flips:
        say(
            console,
            f"{task.task}: and {left} more flips; comparison.json has {len(task.flips)} with their"
            " texts",
        )
    _places(task, console)
    for side, workers in zip("AB", task.attributions, strict=True):
        if workers is not None:
            attribution(workers, f"{task.task}: {side}", console)
    for reason in task.verdict.reasons:
        say(console, f"{task.task}: {reason}")
    for warning in (*task.verdict.warnings, *task.warnings):
        say(console, f"{task.task}: warning: {warning}")


def _drop(task: ComparedTask) -> Iterator[str]:
    """Yield the result of the paired comparison for a drop."""
    if (told := task.verdict.paired) is None:
        return
    kept = ", and so is a rise of that size" if told.equivalent else ""
    no = "is" if told.noninferior else "is not"
    yield describe_paired(told).replace("1 reference run", "A")
    if told.anchors is not None:
        yield anchors_text(told.anchors).replace("reference run", "run of A")
    yield f"a drop of {told.margin:.3f} points (the margin) {no} excluded{kept}"


def _answers(task: ComparedTask) -> Iterator[str]:
    """Yield how far the answers of both sides agree, and those of the side that was asked twice."""
    if task.agreement.prompts:
        yield f"texts of A and B: {_agreement(task.agreement)}"
    if (parted := task.text_places) is not None:
        yield (
            f"{parted.texts} texts first differ at character {parted.median_character:g} (median;"
            f" {parted.median_share:.0%} of the longer text), {parted.at_start} at the first one"
        )
    if task.itself is not None:
        yield _itself(task.itself)
    yield from _effects(task)


def _effects(task: ComparedTask) -> Iterator[str]:
    """Yield how often each side differs from itself, next to how often A differs from B."""
    own = [
        f"{name} from itself on {_differing(agreed)}"
        for name, agreed in zip("AB", task.own, strict=True)
        if agreed is not None and agreed.prompts
    ]
    if own and task.agreement.prompts:
        yield f"answers differ: {', '.join(own)}, A from B on {_differing(task.agreement)}"


def _differing(agreed: Agreement) -> str:
    return f"{agreed.different} of {agreed.prompts} ({agreed.different / agreed.prompts:.1%})"


def _service(task: ComparedTask) -> Iterator[str]:
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
            yield f"{what}, A | B: {shown}"
    tokens = [traffic.completion_tokens for traffic in task.traffic]
    if any(tokens):
        yield f"generated tokens, A | B: {tokens[0]} | {tokens[1]}"


def _first_differences(task: ComparedTask) -> Iterator[str]:
    """Yield the kinds of the first different tokens of the flips."""
    if kinds := Counter(flip.divergence.kind for flip in task.flips if flip.divergence is not None):
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        why = next(
            (f.divergence.why for f in task.flips if f.divergence is not None and f.divergence.why),
            "",
        )
        yield (
            f"first different tokens of {kinds.total()} flips: {counts}{f' ({why})' if why else ''}"
        )


def _agreement(agreed: Agreement) -> str:
    return (
        f"{agreed.identical} of {agreed.prompts} identical, {agreed.same_answer} with the same"
        f" answer, {agreed.different} different"
    )


def _itself(told: SelfFlips) -> str:
    one, other = ("A", "B") if told.endpoint == "A" else ("B", "A")
    by = f" by {told.measure}" if told.measure else ""
    unknown = ""
    if one == "B" and (told.own or told.own_texts):
        unknown = "; A was asked once, so whether A is steadier is not known"
    own, across = (
        f"{scores} scores" + ("" if spoken is None else f" and {spoken} texts")
        for scores, spoken in ((told.own, told.own_texts), (told.other, told.other_texts))
    )
    return (
        f"{one} asked twice: {own} of {told.prompts} prompts differ; compared with {other}:"
        f" {across} (p {told.p:.2g}{by}, {conclusion(told)}); texts of {one} and {one}:"
        f" {_agreement(told.agreement)}{unknown}"
    )


def _flip(task: str, flip: Flip, console: Console) -> None:
    before, after = flip.scores
    answers = " -> ".join(
        "nothing extracted" if answer is None else repr(answer) for answer in flip.answers
    )
    say(
        console,
        f"{task}: {flip.id}: {before:g} -> {after:g}, {answers}; target"
        f" {_brief(_target(task, flip.target))}",
    )
    if (place := flip.first_difference) is not None:
        say(console, f"  from character {place.character} (word {place.word}) on, A: {place.a!r}")
        say(
            console,
            f"  {' ' * len(f'from character {place.character} (word {place.word}) on')}  B:"
            f" {place.b!r}",
        )
    looked = flip.divergence
    if looked is not None and looked.tokens is not None and looked.gaps is not None:
        (x, y), (at_a, at_b) = looked.tokens, looked.gaps
        say(
            console,
            f"  token {looked.token}: {x!r} | {y!r}, preferred by {at_a:.3f} | {at_b:.3f} nats:"
            f" {looked.kind}",
        )


def _places(task: ComparedTask, console: Console) -> None:
    """Print where the examined flips first differ."""
    if task.places is None:
        return
    say(console, f"{task.task}: first different token of the examined flips (#: confident):")
    for line in draw_places(task.places):
        say(console, line)
    if task.places.reading:
        say(console, f"{task.task}: {task.places.reading}")


def _target(task: str, target: str) -> str:
    """Return the expected answer, without the scorer that the target of a case also holds."""
    if not is_mutable(task) or not target.startswith("{"):
        return target
    import msgspec

    return msgspec.json.encode(msgspec.json.decode(target)["expected"]).decode()


def _brief(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= 40 else f"...{flat[-37:]}")
