"""Hold one cell of a table of deployments by tasks: its figures, its marks, and why it has none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean, stdev
from typing import Literal

from serve_eval.report.summary.figures import add_sign, count, figure
from serve_eval.schema import Metric, VerdictOutcome

MISSING = "-"
LEFT_OUT = "not run in this way, or not finished"
UNPAIRED = "there are no scores of the baseline on the same prompts"
_NOT_PLAIN = ("/", "\\", "serve-eval")
"""Signs of a path, a URL or a command."""
MARKS = {
    VerdictOutcome.PASS: "P",
    VerdictOutcome.FAIL: "F",
    VerdictOutcome.INCONCLUSIVE: "I",
    VerdictOutcome.NO_REFERENCE: "N",
    VerdictOutcome.NOT_JUDGED: "T",
    VerdictOutcome.SHARD: "S",
    VerdictOutcome.UNSUPPORTED: "U",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One of the runs of a cell: its sampling seed ("": none), its value and its folder.

    `difference` is that from its own reference, or that of this seed from a baseline. An early stop
    leaves no answers to pair: such a run is not `whole`.
    """

    seed: str
    value: float
    run: str = ""
    difference: float | None = None
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCell:
    """One task of one run.

    `value` and `interval` (95 %) are in points or in the unit of the metric. `scored` of `planned`
    samples have a score (None: an error ended the run before their number was known); `estimate`:
    an early stop left the others out. `others` further runs of the same row and column are not
    shown; `draws` has all that have a value. `seeds` says over which sampling seeds the difference
    is a mean; the value then is one too. `reason` says why there is no value, `brief` the same
    without a place, and `answers` how many came before an error. `rule` judged, against
    `reference`; `difference` with its 95 % interval and the one-sided `p` are of the same prompts,
    if the reference has scores of single ones, else
    `no_difference` says why there is none. `pairs` is the number of common prompts if the two sides
    planned others too. `p_rise` is that of "no rise", `margin` the drop that matters to the pairs.

    `p_rule` is the p of the test that the rule looks at, which under anchors is another than `p`.
    `p_holm` corrects it over `tests` tests: those of its suite (`in_suite`), else those of the
    table; `q` is that of a suite. `finding` is after this correction, and so is `proven`, the
    direction of a proven change. `reference_name` names what judged it. In a table of differences
    `p_table` is the two-sided p by Holm over the table, and `star` says that it proves the
    difference; `signed`: the value is one. `chosen`: the user named the samples.
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
    others: int = 0
    draws: tuple[Draw, ...] = ()
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
    reference_name: str = ""
    p_table: float | None = None
    star: bool = False
    signed: bool = False

    @property
    def change(self) -> str:
        """The direction of a proven change; a FAIL of a value says it itself."""
        failed = self.outcome is VerdictOutcome.FAIL and not self.signed
        return "" if failed else self.proven

    @property
    def own_seed(self) -> str:
        """The sampling seed of the value, if the runs of the cell have several; else ""."""
        if self.seeds or self.value is None or len({one.seed for one in self.draws}) < 2:
            return ""
        return next((one.seed or "none" for one in self.draws if one.run == self.run), "")

    @property
    def over_seeds(self) -> tuple[float | None, float | None]:
        """The mean of the values of several sampling seeds and their standard deviation."""
        values = [one.value for one in self.draws]
        if len({one.seed for one in self.draws}) < 2:
            return None, None
        return fmean(values), stdev(values)

    @property
    def marks(self) -> list[str]:
        """The verdict, and what a reader of the value must know."""
        counts = {"f": self.failed, "r": self.repaired, "e": self.scored if self.estimate else 0}
        marks = [f"{mark}{n}" for mark, n in counts.items() if n]
        marks += [f"s{self.own_seed}"] if self.own_seed else []
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
        if self.signed and self.pairs is not None:
            yield f"on the {count(self.pairs, 'prompt')} that both runs asked"
        if self.chosen and self.value is not None:
            what = "p and stars" if self.signed else "p, findings and the verdict"
            yield (
                f"the samples were named by the user: {what} do not hold if they were chosen by how"
                " they were answered"
            )
        if self.seeds and self.value is not None:
            yield f"the mean over {self.seeds}{self._list_differences(metric)}"
        elif self.others:
            which = "" if plain else f", {self.run}; --all shows each"
            yield f"the latest of {self.others + 1} runs{self._say_spread(metric)}{which}"

    def _say_spread(self, metric: Metric) -> str:
        """Return the mean and the spread of runs that differ in their sampling seeds."""
        seeds = list(dict.fromkeys(one.seed for one in self.draws))
        if len(seeds) < 2:
            return ""
        found = [one.difference if self.signed else one.value for one in self.draws]
        values = [one for one in found if one is not None]
        named = f" with sampling seeds {name_seeds(seeds)}"
        if len(values) < 2:
            return named
        write = add_sign if self.signed else figure
        what = "differences" if self.signed else "values"
        mean, sd = write(fmean(values), metric), figure(stdev(values), metric)
        return f"{named}: mean {mean}, sd {sd} of the {len(values)} {what}"

    def _list_differences(self, metric: Metric) -> str:
        """Return the difference of each seed, and their spread."""
        found = [one.difference for one in self.draws if one.difference is not None]
        if not self.signed or len(found) < 2:
            return ""
        each = ", ".join(add_sign(one, metric) for one in found)
        return f": {each}, sd {figure(stdev(found), metric)}"


def name_seeds(seeds: Iterable[str]) -> str:
    """Return sampling seeds, which are "" for none, as a list."""
    return ", ".join(seed or "none" for seed in seeds)


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
