"""Make the document of a plan: the drop that n samples find, or the n for a drop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from serve_eval.plugins.setting import list_declared
from serve_eval.report.document import Block, Conclusion, Depth, Document, Statement, make_header
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.report.summary.figures import write_number
from serve_eval.shell_words import quote_path
from serve_eval.workflows.power.answers import (
    CLASSIC,
    EXCLUDED,
    PAIRED,
    PAIRED_FAIL,
    Detection,
    Needed,
    SizeRow,
    TaskPower,
)
from serve_eval.workflows.power.assumed import DEFAULT, Assumed
from serve_eval.workflows.power.question import PowerQuestion

PLAN = "PLAN"
_QUESTIONS = ("total", "theta", "detect")
"""Options that a next command replaces by the reverse question."""


def make_document(found: Sequence[TaskPower], asked: PowerQuestion) -> Document:
    """Return the document of the answers for each task, with what they assume and their tables."""
    several = len(found) > 1
    return Document(
        "power",
        f"serve-eval references power{_write_flags(asked, asked_too=True)}",
        make_header(0),
        conclusions=[_conclude(one, Depth.MORE if several else Depth.FIRST) for one in found],
        overview=_compare_tasks(found) if several else None,
        blocks=[block for one in found for block in _list_tables(one, several)],
        commands=list(_list_next(found, asked)),
    )


def _conclude(one: TaskPower, depth: Depth) -> Conclusion:
    return Conclusion(
        one.task or _name_question(one),
        PLAN,
        figures=_answer(one),
        statements=[Statement(label, text, depth=depth) for label, text in explain(one)],
    )


def _name_question(one: TaskPower) -> str:
    """Return what was asked, where no task gives a name."""
    if one.sizes:
        return count_samples(one.sizes[-1].n)
    if one.detection is not None:
        return f"a drop of {write_points(one.detection.drop)}"
    assert one.theta is not None
    return f"theta {one.theta.theta:g}"


def _answer(one: TaskPower) -> str:
    """Return the answer in a few words: the drop that n finds, or the n for a drop."""
    chance = f"with a probability of {one.assumed.power:g} (paired)"
    if one.detection is not None and not one.sizes:
        drop = f"a drop of {write_points(one.detection.drop)}" if one.task else "it"
        return f"{count_samples(one.detection.n)} prove {drop} {chance}"
    if one.at is not None:
        named = f"{count_samples(one.at.n)}: " if one.task else ""
        drop = (
            "no drop" if one.at.failed is None else f"a drop of {write_drop(one.at.failed)} points"
        )
        return f"{named}{drop} is FAIL {chance}"
    assert one.theta is not None
    return f"{count_samples(one.theta.n)} (classic)"


def _compare_tasks(found: Sequence[TaskPower]) -> DataTable:
    """Return the table of several tasks: what their samples find, and the samples for the drop."""
    names = ["task", "n", "FAIL from", "proven from", "classic from"]
    rows = []
    for one in found:
        at, row = one.at, [one.task]
        if at is not None:
            row += [f"{at.n:,}", *map(write_drop, (at.failed, at.proven, at.theta))]
        if one.detection is not None:
            row += [
                "none" if need.n is None else f"{need.n:,}"
                for need in one.detection.needed
                if need.rule in (PAIRED, PAIRED_FAIL)
            ]
        rows.append([DataCell(text) for text in row])
    if (drop := found[0].detection) is not None:
        names += [f"n to prove {drop.drop:g}", f"n to FAIL {drop.drop:g}"]
    return DataTable(
        "Tasks",
        columns=[DataColumn(name, number=i > 0) for i, name in enumerate(names)],
        rows=rows,
        caption="from: the least drop in points that is found with the wanted probability",
    )


def _list_tables(one: TaskPower, several: bool) -> Iterator[Block]:
    """Yield the table by n, and that of the power by drop."""
    of = f" of {one.task}" if several else ""
    if len(one.sizes) > 1:
        sizes = [
            [
                str(row.n),
                write_number(row.theta, 6),
                write_number(row.threshold, 6),
                write_drop(row.proven),
                write_drop(row.failed),
            ]
            for row in one.sizes
        ]
        yield _tabulate(
            f"Samples{of}",
            ("n", "theta", "threshold - reference", "paired drop", "paired FAIL"),
            sizes,
            "paired drop, paired FAIL: the least drop that is proven, and FAIL, with a probability"
            f" of {one.assumed.power:g}",
        )
    if (found := one.detection) is not None:
        chances = [
            [f"{row.drop:g}", *map(write_number, (row.classic, row.proven, row.failed))]
            for row in found.rows
        ]
        yield _tabulate(
            f"Power with {found.n} samples{of}",
            ("drop", "classic FAIL", "paired proven", "paired FAIL"),
            chances,
            f"{explain_margin(one.assumed, found.n)}. Other proven drops pass with the warning"
            " small_drop.",
        )


def _tabulate(
    title: str, names: Sequence[str], rows: Sequence[Sequence[str]], caption: str
) -> Block:
    section = DataTable(
        title,
        columns=[DataColumn(name, number=True) for name in names],
        rows=[[DataCell(text) for text in row] for row in rows],
        caption=caption,
    )
    return Block(section, depth=Depth.MORE)


def _list_next(found: Sequence[TaskPower], asked: PowerQuestion) -> Iterator[str]:
    """Yield the reverse question: the samples for a drop that n finds, or the drop that n finds."""
    flags = _write_flags(asked, asked_too=False)
    for one in found[:1]:
        if one.detection is not None:
            needs = [need.n for need in one.detection.needed if need.rule in (PAIRED, PAIRED_FAIL)]
            yield f"serve-eval references power --total {max(n or 0 for n in needs)}{flags}"
        elif one.theta is not None:
            yield f"serve-eval references power --total {one.theta.n}{flags}"
        elif one.at is not None and one.at.failed is not None:
            yield f"serve-eval references power --detect {one.at.failed:.3g}{flags}"


def _write_flags(asked: PowerQuestion, *, asked_too: bool) -> str:
    """Return the options that were given; without the questions unless `asked_too`."""
    given = "" if asked.from_run is None else f" --from {quote_path(asked.from_run)}"
    for option in list_declared(PowerQuestion):
        value = getattr(asked, option.name)
        left_out = option.name == "from_run" or (option.name in _QUESTIONS and not asked_too)
        if value != option.default and not left_out:
            text = _write_value(value)
            given += (
                f" {option.flags[0]} {text}"
                if option.setting.flag
                else f" --set {option.place}={text}"
            )
    return given


def _write_value(value: float) -> str:
    """Return a number in its shortest form that is read as the same."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


LABELS = {CLASSIC: "classic", PAIRED: "paired", PAIRED_FAIL: "FAIL", EXCLUDED: "excluded"}
"""Labels of the samples that a rule needs."""
LONG_S = 10.0
"""Seconds from which a time has no decimals."""


def count_samples(n: int) -> str:
    """Return a number of samples: "1,319 samples"."""
    return f"{n:,} sample{'s' * (n != 1)}"


def write_points(points: float) -> str:
    """Return a drop as a user gave it: "1 point"."""
    return f"{points:g} point{'s' * (points != 1)}"


def write_drop(drop: float | None) -> str:
    """Return a drop in points that was computed; "no" if none is large enough."""
    return "no" if drop is None else write_number(drop, 2)


def explain(one: TaskPower) -> Iterator[tuple[str, str]]:
    """Yield the answers by rule, and what they assume, each with a label."""
    if one.detection is not None and not one.sizes:
        yield from _explain_detection(one.detection, "")
    if one.at is not None:
        only = one.detection is not None and not one.sizes
        yield from _explain_size(one.at, one.assumed, f"{count_samples(one.at.n)}: " * only)
    if one.detection is not None and one.sizes:
        about = f"for a drop of {write_points(one.detection.drop)}: "
        yield from _explain_detection(one.detection, about)
    if one.theta is not None:
        yield (
            "theta",
            f"{write_points(one.theta.theta)} take {count_samples(one.theta.n)} by the classic rule"
            f" (sigma {one.assumed.sigma:g}, alpha {one.assumed.alpha:g}, beta"
            f" {one.assumed.beta:g}); row of the table: {one.theta.row}",
        )
    yield from _describe_measured(one)
    yield from _describe_assumed(one.assumed)


def explain_margin(planned: Assumed, n: int) -> str:
    """Return what makes a proven drop FAIL."""
    whose = "the rule's default" if planned.margin is None else "--margin"
    return (
        f"FAIL is a proven drop if one of the margin, {planned.find_margin(n):.4g} points"
        f" ({whose} with {count_samples(n)}), is not excluded"
    )


def _explain_size(at: SizeRow, planned: Assumed, about: str) -> Iterator[tuple[str, str]]:
    """Yield what n samples find by the paired rule and by the classic one, `about` in front."""
    proof, fail = (
        f"a drop of {write_drop(drop)} points" if drop is not None else "no drop"
        for drop in (at.proven, at.failed)
    )
    yield "paired", f"{about}proves {proof}, and fails {fail}: {explain_margin(planned, at.n)}"
    yield (
        "classic",
        f"{about}fails {write_number(-at.threshold)} points below the reference; finds a drop of"
        f" {write_drop(at.theta)} points (theta) with a probability of {1 - planned.beta:g}",
    )
    if about:
        return
    yield (
        "ask",
        f"all {count_samples(at.n)}, against a reference with the score of each; without the"
        " scores, the classic rule judges",
    )


def _explain_detection(found: Detection, about: str) -> Iterator[tuple[str, str]]:
    """Yield the samples that each rule needs for a drop, `about` in front."""
    for one in found.needed:
        yield LABELS[one.rule], f"{about}{_describe_needed(one)}"
    if not about:
        n = max(one.n or 0 for one in found.needed if one.rule in (PAIRED, PAIRED_FAIL))
        yield "ask", f"{count_samples(n)}, against a reference with the score of each"


def _describe_needed(one: Needed) -> str:
    samples = "no number of samples" if one.n is None else count_samples(one.n)
    if one.seconds is None:
        return f"{samples} {one.purpose}"
    time = f"{one.seconds:,.0f}" if one.seconds >= LONG_S else f"{one.seconds:.2g}"
    return f"{samples} {one.purpose}; {time} s at the measured throughput"


def _describe_measured(one: TaskPower) -> Iterator[tuple[str, str]]:
    """Yield what the run shows."""
    if (measured := one.measured) is None:
        return
    rate = "" if measured.per_second is None else f", {measured.per_second:.1f} samples per second"
    spread = (
        f"standard deviation {measured.sigma:.3f} points (right or wrong with that mean:"
        f" {measured.bernoulli:.3f})"
        if measured.sigma
        else "all with the same score: their spread is not known"
    )
    yield "run", f"{count_samples(measured.n)}, value {measured.value:.3f}{rate}; {spread}"


def _describe_assumed(planned: Assumed) -> Iterator[tuple[str, str]]:
    """Yield the numbers that the answers assume, and where they are from."""
    alpha = f"alpha {planned.alpha:g}"
    if planned.flips_of == planned.sigma_of == DEFAULT:
        both = f"a flip rate of {planned.flip_rate:g} and sigma {planned.sigma:g}"
        yield "assumes", f"{both}, the defaults; {alpha}"
    else:
        yield "flips", f"flip rate {planned.flip_rate:.4g}, {planned.flips_of}; {alpha}"
        yield "sigma", f"sigma {planned.sigma:.5g}, {planned.sigma_of}"
    if planned.tests > 1:
        yield (
            "tests",
            f"proofs at alpha / {planned.tests} = {planned.proof:g}: Holm's bound for the worst"
            f" rank of {planned.tests} tests; other ranks have more power",
        )
    if planned.design_effect != 1.0:
        whose = "" if planned.effect_of is None else f", {planned.effect_of}"
        yield (
            "groups",
            f"design effect {planned.design_effect:.3g}{whose}: prompts share groups, and the"
            " paired rules need that many times the samples of independent prompts",
        )
    if planned.repeats > 1:
        yield (
            "repeats",
            f"{planned.repeats} answers to each prompt on both sides (about: sums of one each)",
        )
        yield (
            "proof",
            "no build of equal accuracy explains the drop; the noise is that of the prompts and of"
            " the answers",
        )
        yield (
            "exclude",
            "a drop on these prompts; the noise is that of the answers alone, so that"
            f" {planned.repeats} answers to a prompt count as {planned.repeats} prompts",
        )
