"""Hold one cell of a table of deployments by tasks: its figures, its marks, and why it has none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import fmean, stdev
from typing import Literal

from serve_eval.frozen import freeze
from serve_eval.report.summary.figures import add_sign, count, figure
from serve_eval.schema import Metric, VerdictOutcome

MISSING = "-"
LEFT_OUT = "not run in this way, or not finished"
UNPAIRED = "there are no scores of the baseline on the same prompts"
_NOT_PLAIN = ("/", "\\", "serve-eval")
"""Signs of a path, a URL or a command."""
MARKS = {
    VerdictOutcome.PASS: "P",
    VerdictOutcome.PASS_BY_IDENTITY: "Y",
    VerdictOutcome.FAIL: "F",
    VerdictOutcome.INCONCLUSIVE: "I",
    VerdictOutcome.NO_REFERENCE: "N",
    VerdictOutcome.NOT_JUDGED: "T",
    VerdictOutcome.SHARD: "S",
    VerdictOutcome.UNSUPPORTED: "U",
    VerdictOutcome.NOT_ASKED: "A",
    VerdictOutcome.ERROR: "E",
}
"""The mark of each outcome: a letter, which every format and font has."""
UNJUDGED = frozenset(MARKS) - {
    VerdictOutcome.PASS,
    VerdictOutcome.FAIL,
    VerdictOutcome.INCONCLUSIVE,
}
"""The outcomes without a comparison."""
PROVEN = {"drop": "d", "rise": "u"}
"""The mark of a proven change that is no FAIL."""
STAR = "*"
"""The mark of a proven difference."""


@freeze
class ResultCell:
    """One task of a deployment: of one run, or of runs that differ only in their sampling seed.

    `value` and `interval` (95 %) are in points or in the unit of the metric. `scored` of `planned`
    samples have a score (None: an error ended the run before their number was known); `estimate`:
    an early stop left the others out. `others` further runs of the same row and column are not
    shown. `reason` says why there is no value, `brief` the same without a place, and `answers` how
    many came before an error.

    `seed` is the sampling seed of a run ("": none); an early stop leaves no answers to pair: such a
    run is not `whole`. Of several seeds, `draws` has a cell each, also of those without a value:
    the figures are those of the mean over the others, and the outcome is the worst. `seeds` says
    over which seeds a difference from a baseline is a mean. `run` names all runs of the figures.
    `answered` identifies answers and scores, which a copy of a run shares: it is no further test.

    `rule` judged, against
    `reference`; `difference` with its 95 % interval and the one-sided `p` are of the same prompts,
    if the reference has scores of single ones, else
    `no_difference` says why there is none. `pairs` is the number of common prompts if the two sides
    planned others too. `p_rise` is that of "no rise", `margin` the drop that matters to the pairs.

    `p_rule` is the p of the test that the rule looks at, which under anchors is another than `p`.
    `p_holm` corrects it over `tests` tests: those of its suite (`in_suite`), else those of the
    table; `q` is that of a suite. `finding` is after this correction, and so is `proven`, the
    direction of a proven change. `reference_name` names what judged it. `inflation` is the factor
    on the errors of the difference, since the runs of a side differ as a whole; `run_effect` says
    of which. In a table of differences
    `p_table` is the two-sided p by Holm over the table, and `star` says that it proves the
    difference; `signed`: the value is one. `chosen`: the user named the samples. Of
    `repeats` answers to each prompt, `pass_at_repeats` is pass@k with k = `repeats` in percent, and
    `vote` the value of the most frequent answers; `published` is the line about them.
    """

    value: float | None
    interval: tuple[float, float] | None
    outcome: VerdictOutcome
    scored: int
    planned: int | None
    failed: int = 0
    repaired: int = 0
    estimate: bool = False
    waived: bool = False
    run: str = ""
    answered: str = ""
    others: int = 0
    draws: tuple[ResultCell, ...] = ()
    seed: str = ""
    whole: bool = True
    seeds: str = ""
    reason: str = ""
    brief: str = ""
    answers: str = ""
    rule: str = ""
    reference: float | None = None
    difference: float | None = None
    difference_interval: tuple[float, float] | None = None
    p: float | None = None
    no_difference: str = ""
    pairs: int | None = None
    margin: float | None = None
    default_margin: bool = False
    p_rise: float | None = None
    p_rule: float | None = None
    p_holm: float | None = None
    tests: int | None = None
    in_suite: bool = False
    chosen: bool = False
    q: float | None = None
    finding: str = ""
    proven: Literal["", "drop", "rise"] = ""
    repeats: int = 1
    pass_at_repeats: float | None = None
    vote: float | None = None
    published: str = ""
    reference_name: str = ""
    inflation: float = 1.0
    run_effect: str = ""
    p_table: float | None = None
    star: bool = False
    signed: bool = False

    @property
    def change(self) -> str:
        """The direction of a proven change; a FAIL of a value says it itself."""
        failed = self.outcome is VerdictOutcome.FAIL and not self.signed
        return "" if failed else self.proven

    @property
    def averaged(self) -> list[ResultCell]:
        """The cells of the sampling seeds that the figures are the mean over."""
        return [
            one for one in self.draws if (one.difference if self.signed else one.value) is not None
        ]

    @property
    def over_seeds(self) -> tuple[float | None, float | None]:
        """The mean of the values of several sampling seeds and their standard deviation."""
        values = [one.value for one in self.draws if one.value is not None]
        return fmean(values) if values else None, stdev(values) if len(values) > 1 else None

    @property
    def marks(self) -> list[str]:
        """The verdict, and what a reader of the value must know."""
        counts = {"f": self.failed, "r": self.repaired, "e": self.scored if self.estimate else 0}
        marks = [f"{mark}{n}" for mark, n in counts.items() if n]
        marks += [f"s{len(self.averaged)}"] if self.averaged else []
        if self.signed:
            return [*([STAR] if self.star else []), *marks]
        proven = [PROVEN[self.change]] if self.change else []
        return [MARKS[self.outcome] + ("w" if self.waived else ""), *proven, *marks]

    def figures(self, metric: Metric) -> str:
        """Return the value with its interval: "65.0 [40.8, 84.6]", "~64.1" or "-"."""
        return f"{self.number(metric)} {self.ends(metric)}".rstrip()

    def number(self, metric: Metric) -> str:
        """Return the value alone: "65.0", "~64.1", "-11.1" or "-"."""
        if self.value is None:
            return MISSING
        write = add_sign if self.signed else figure
        return f"{'~' if self.estimate else ''}{write(self.value, metric)}"

    def ends(self, metric: Metric) -> str:
        """Return the interval alone: "[40.8, 84.6]", or "" without one."""
        if self.value is None or self.interval is None:
            return ""
        write = add_sign if self.signed else figure
        return f"[{', '.join(write(end, metric) for end in self.interval)}]"

    def write(self, metric: Metric) -> str:
        """Return the figures with the marks."""
        return f"{self.figures(metric)} {' '.join(self.marks)}".rstrip()

    def explain(self, metric: Metric, *, plain: bool) -> Iterator[str]:
        """Yield why there is no figure, and of how many runs it is of the latest.

        `plain`: without commands, paths and URLs.
        """
        if self.value is None:
            what, why = (
                ("difference", self.no_difference or UNPAIRED)
                if self.signed
                else ("value", name_outcome(self.outcome, self.reason))
            )
            judged = self.signed and self.outcome not in UNJUDGED
            rest = "the runs cannot be paired" if judged else self.outcome.value
            first = why.partition("\n")[0]  # a server's log may follow
            shown = name_outcome(self.outcome, self.brief) if self.brief else ""
            if plain:
                yield f"no {what}: {shown or _leave_out_places(first) or rest}"
            else:
                yield f"no {what}: {first}{f' ({self.answers})' if self.answers else ''}"
        if self.published and self.value is not None and not self.signed:
            yield self.published
        if self.signed and self.value is not None and self.run_effect:
            yield self.run_effect
        if self.signed and self.pairs is not None:
            yield f"on the {count(self.pairs, 'prompt')} that both runs asked"
        if self.chosen and self.value is not None:
            what = "p and stars" if self.signed else "p, findings and the verdict"
            yield (
                f"the samples were named by the user: {what} do not hold if they were chosen by how"
                " they were answered"
            )
        if self.draws and self.value is not None:
            yield from self._explain_seeds(metric, plain=plain)
        if self.others:
            where = "" if plain or self.draws else f", {self.run}"
            which = (
                f"the latest run of each seed; earlier runs: {self.others}"
                if self.draws
                else f"the latest of {self.others + 1} runs"
            )
            yield f"{which}{where}{'' if plain else '; --all shows each'}"

    def _explain_seeds(self, metric: Metric, *, plain: bool) -> Iterator[str]:
        """Yield over which sampling seeds the figures are a mean, how these vary, and the rest."""
        known = self.averaged
        named = self.seeds or _say_seeds(known)
        values = [one.difference if self.signed else one.value for one in known]
        found = [one for one in values if one is not None]
        told = [f"sd {figure(stdev(found), metric)}"] if len(found) > 1 else []
        if self.signed:
            told = [*(add_sign(one, metric) for one in found), *told] if told else []
        whose = "the mean over" if len(known) != 1 else "of"
        yield f"{whose} {named}{': ' if told else ''}{', '.join(told)}"
        verdicts = [MARKS[one.outcome] + ("w" if one.waived else "") for one in self.draws]
        if not self.signed and len({*verdicts}) > 1:
            yield f"verdicts of the seeds {name_seeds(self.draws)}: {' '.join(verdicts)}"
        for one in self.draws:
            if one not in known and not self.seeds:
                bare = replace(one, signed=self.signed, value=None)
                for why in bare.explain(metric, plain=plain):
                    yield f"{_say_seeds([one])} has {why}"


def name_seeds(cells: Iterable[ResultCell]) -> str:
    """Return the sampling seeds of cells, which are "" for none, as a list."""
    return ", ".join(one.seed or "none" for one in cells)


def _say_seeds(cells: Sequence[ResultCell]) -> str:
    return f"sampling seed{'' if len(cells) == 1 else 's'} {name_seeds(cells)}"


def describe_run_effect(whose: str, cochran_q: float, p: float, inflation: float) -> str:
    """Return a note that the runs of one side differ as a whole, so that errors are larger."""
    return (
        f"the runs of {whose} differ as a whole (Cochran's Q {cochran_q:.2f}, p {p:.2g}): each"
        f" error of the difference is multiplied by {inflation:.2f}"
    )


def name_outcome(outcome: VerdictOutcome, why: str) -> str:
    """Return a reason that names its outcome, if nothing was compared."""
    if not why:
        return outcome.value
    named = outcome not in UNJUDGED or why.upper().startswith(outcome.value)
    return why if named else f"{outcome.value}: {why}"


def _leave_out_places(reason: str) -> str:
    """Return a reason without a path, a URL or a command, each with the rest of its clause."""
    kept = []
    for clause in reason.split("; "):
        parts = clause.split(": ")
        plain = list(takewhile(lambda part: not any(sign in part for sign in _NOT_PLAIN), parts))
        if len(plain) < len(parts):  # a single word in front of a place says nothing
            plain = [part for part in plain if " " in part or part.isupper()]
        kept.append(": ".join(plain))
    return "; ".join(filter(None, kept))
