"""Hold what the rules of a diagnosis read and find: samples, findings, tests of shares.

All of them are in memory at once: about 700 bytes and the text of the answer for each. So what no
rule reads is left out, and equal values are one object.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import force_setattr

from serve_eval.frozen import freeze, freeze_places
from serve_eval.schema import Attempt, Failure, Metric, Outcome, Response
from serve_eval.shell_words import quote_argument, quote_word
from serve_eval.stats.contingency import find_cut
from serve_eval.stats.no_worse import no_worse
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.storage import journal
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.scores import ScoreRecord, SharedValues, score_records

if TYPE_CHECKING:
    from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence


ALPHA = 0.001
"""Probability that a rule that compares shares reports a healthy run, if it may spend all of it."""
SIDE_SHARE, BETWEEN_SHARE = 0.25, 5 / 8
"""Shares of the levels that a diagnosis spends on either side of a comparison, and between them."""
SHOWN = 5
"""Number of sample ids that a finding lists."""
LEAST, LEAST_SHARE = 3, 0.05
"""Smallest number and share of the wrong or missing answers that a finding about answers has to
explain."""
_FEW, _MANY = 10, 20
_RED, _UNJUDGED = 0.5, 0.8


@freeze_places
class Finding:
    """A probable cause, and what to change.

    `count` of `of` is the evidence. The finding `explains` at most that number of the `lost`
    samples, which are wrong or missing (None if the number is unknown). `change` are options to
    copy, the best first; `log` are lines of servers' logs. `task` is None if the finding concerns
    the whole run. `p` is the p-value of the rule's test (None for a fact). `rather` is a likelier
    cause than the place that `told` names. `p_below`: random draws cannot show a smaller `p`.
    `leads`: the line of a verdict may name this as the likeliest cause. `minor`: it is known to
    explain less than half of the drop, so that it is a remark.
    """

    rule: str
    told: str
    _: KW_ONLY
    change: tuple[str, ...]
    count: int
    of: int
    explains: int | None = None
    lost: int = 0
    task: str | None = None
    samples: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    p: float | None = None
    p_below: bool = False
    rather: str = ""
    leads: bool = True
    minor: bool = False

    @property
    def is_remark(self) -> bool:
        """True if this explains none of the lost answers, or too few to hide other causes."""
        return self.minor or self.explains == 0

    @property
    def brief(self) -> str:
        """The cause in the words of one line."""
        place = self.told.partition("; ")[0].partition(", and ")[0]
        p = "" if self.p is None or "p = " in place else f"p {self.write_p(equal='= ')}"
        if self.rather:
            return f"{self.rather} ({', '.join(filter(None, (place, p)))})"
        return f"{place} ({p})" if p else place

    def write_p(self, equal: str = "") -> str:
        """Return p in one digit, such as "0.002", or "< 0.0004" if draws show no smaller one."""
        assert self.p is not None
        if not self.p_below:
            return f"{equal}{self.p:.1g}"
        digit = 10.0 ** math.floor(math.log10(self.p))
        return f"< {(math.floor(self.p / digit) + 1) * digit:.1g}"


DEFAULTS = "server_defaults"
"""The rule about sampling fields that a server adds: a fact that explains any other difference."""
PLACE = "first_difference"
"""The rule about the first tokens that differ, which a comparison asked for: it leads."""
OVERRULED = "overruled"
"""The rule about a side that does not write the tokens which it ranks first: it leads too."""
MIXED = "mixed_servers"
"""The rule about answers of two servers on one side: they explain any other difference."""
FIRST = (DEFAULTS, MIXED, OVERRULED, PLACE)
"""Rules whose findings lead, in their order."""
WEIGHTS = "weights, precision or cache"
"""The likely causes of a loss that no slice explains."""
OTHER_MODEL = "it may be another model, since many wrong answers turned right too"
"""The remark about losses whose place is no lead."""


def order_findings(found: Iterable[Finding]) -> list[Finding]:
    """Return findings, those first that explain the most, and before them what tokens showed.

    Remarks come last, below findings that explain an unknown number.
    """

    def rank(one: Finding) -> tuple[int, float]:
        if one.is_remark:
            return 0, 0.0
        explains = 0.5 if one.explains is None else one.explains
        return FIRST.index(one.rule) - len(FIRST) if one.rule in FIRST else 0, -explains

    return sorted(found, key=rank)


def list_leading(found: Iterable[Finding]) -> list[Finding]:
    """Return the findings that may be the likeliest cause, the likeliest first.

    A remark is no cause of the lost answers.
    """
    return [one for one in order_findings(found) if one.leads and not one.is_remark]


def about(
    task: TaskEvidence,
    rule: str,
    told: str,
    change: Sequence[str],
    shown: Sequence[AskedSample],
    *,
    of: int,
    p: float | None = None,
    log: Sequence[str] = (),
) -> Finding:
    """Return a finding about the samples that show a sign."""
    lost = [asked for asked in shown if asked.lost]
    return Finding(
        rule,
        told,
        change=tuple(change),
        count=len(shown),
        of=of,
        explains=len(lost),
        lost=len(task.lost),
        task=task.name,
        samples=ids(lost or shown),
        p=p,
        log=tuple(log),
    )


def ids(asked: Iterable[AskedSample]) -> tuple[str, ...]:
    """Return a few ids that may be shown."""
    return tuple([one.id for one in asked if one.shown][:SHOWN])


def capsule_of(run: Evidence, task: TaskEvidence, shown: Iterable[AskedSample]) -> str:
    """Return the shell command for a capsule of the first of the samples that may be shown."""
    one = next((one.id for one in shown if one.shown), "ID")
    chosen = f"--task {quote_word(task.name)} --capsule {quote_argument(one)}"
    return f"serve-eval show {run.place_and_code} {chosen}"


def show_first(run: Evidence, task: TaskEvidence, shown: Sequence[AskedSample]) -> str:
    """Return the shell command that shows the first of these samples."""
    several = f" --task {quote_word(task.name)}" if len(run.tasks) > 1 else ""
    return f"serve-eval show {run.place_and_code}{several} {quote_argument(shown[0].id)}"


def matters(task: TaskEvidence, shown: Sequence[AskedSample]) -> bool:
    """Return True if these samples explain enough of the wrong or missing ones."""
    lost = sum(asked.lost for asked in shown)
    return lost >= max(LEAST, LEAST_SHARE * len(task.lost))


def worse(
    task: TaskEvidence,
    shown: Sequence[AskedSample],
    others: Sequence[AskedSample],
    *,
    signs: int = 1,
) -> float | None:
    """Return the p-value if samples with a sign are lost more often than others, else None.

    `signs` is the number of signs that the rule tests; they share the level. With very few others
    there is nothing to compare with. The sign then counts if most of the samples that show it are
    lost and the task does not pass.
    """
    p = larger_share(task, shown, others)
    if p <= ALPHA * task.share / signs:
        return p
    least = None if task.passes else _RED if task.red else _UNJUDGED
    overwhelming = least is not None and sum(asked.lost for asked in shown) >= least * len(shown)
    return p if overwhelming and len(others) < _FEW and len(shown) >= _MANY else None


def count_turned(task: TaskEvidence, turned: int, back: int) -> int:
    """Return how many more answers turned wrong than right, or 0 if chance may explain it.

    A group of answers explains no loss where as many of them turned right.
    """
    if turned <= back or mcnemar(turned, back).p_exact > ALPHA * task.share:
        return 0
    return turned - back


def larger_share(
    task: TaskEvidence, shown: Sequence[AskedSample], others: Sequence[AskedSample]
) -> float:
    """Return Fisher's p-value for a larger share of lost samples among those shown.

    Each prompt counts once.
    """
    a, b = task.witnesses(shown), task.witnesses(others)
    return no_worse([(len(a), sum(one.lost for one in a), len(b), sum(one.lost for one in b))])


@freeze
class AskedSample:
    """A sample that was sent, with the attempts of all sessions.

    It has a `response`, or the last `failure` if there is none. `line` is its score. `bad` means
    that it is not correct; of partial scores, that it is in the lower half or failed a part.
    `shown` means that its id may be shown, because it belongs to no hold-out set.
    """

    id: str
    response: Response | None
    failure: Failure | None
    attempts: tuple[Attempt, ...]
    line: ScoreRecord | None = None
    bad: bool = False
    shown: bool = True

    @property
    def lost(self) -> bool:
        """True if the sample is wrong or missing."""
        return self.bad or self.response is None

    @property
    def started_s(self) -> float:
        """Start of the first attempt, in seconds since 1970; 0 if unknown."""
        return self.attempts[0].start_s if self.attempts else 0.0

    @property
    def outcome(self) -> str | None:
        return None if self.line is None else self.line.outcome


def read_asked(folder: Path, name: str, metric: Metric | None) -> list[AskedSample]:
    """Return the samples of a task by first record. `metric` is None if the run has no report.

    Raises RunFolderError for files that are damaged.
    """
    responses: dict[str, Response | None] = {}
    failures: dict[str, Failure] = {}
    attempts: dict[str, tuple[Attempt, ...]] = {}
    file, shared = samples_file(folder, name), SharedValues()
    for record in journal.read(file) if file.exists() else ():
        sample, result = record.id, record.response or record.failure
        had = responses.get(sample)
        if record.response is not None and had is None:
            _leave_out(record.response, shared)
        responses[sample] = had or record.response
        if record.failure is not None:
            failures[sample] = record.failure
        more = () if result is None else result.attempts
        attempts[sample] = (*attempts[sample], *more) if sample in attempts else more
    ids = {sample: sample for sample in responses}
    read = (shared.score(one, ids) for one in score_records(folder, name, unfinished=True))
    lines = {line.id: line for line in read}
    sign = 1.0 if metric is None or metric.higher_is_better else -1.0
    best = None if metric is None else metric.hi if metric.higher_is_better else metric.lo
    values = [sign * line.value for line in lines.values()]
    cut = find_cut(values, None if best is None else sign * best) if values else 0.0
    return [
        AskedSample(
            id=sample,
            response=response,
            failure=failures.get(sample) if response is None else None,
            attempts=_order(attempts[sample]),
            line=lines.get(sample) if response is not None else None,
            bad=response is not None and sample in lines and _bad(lines[sample], sign, cut),
        )
        for sample, response in responses.items()
    ]


def _leave_out(response: Response, shared: SharedValues) -> None:
    """Take the ids of an answer and its requests out of memory: no rule reads them."""
    force_setattr(response, "answer_id", None)
    for name in ("text", "finish_reason", "stop_reason"):
        force_setattr(response, name, shared.text(getattr(response, name)))
    for attempt in response.attempts:
        force_setattr(attempt, "request_id", "")


def _order(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """Return attempts in the order of their starts."""
    if len(attempts) < 2:
        return attempts
    return tuple(sorted(attempts, key=lambda attempt: attempt.start_s))


def _bad(line: ScoreRecord, sign: float, cut: float) -> bool:
    """Return True if an answer is not correct.

    A partial score is bad below the cut, or if the answer passed one part and failed another.
    """
    if line.outcome == Outcome.PARTIAL:
        return sign * line.value < cut or {*line.parts.values()} == {0.0, 1.0}
    return line.outcome != Outcome.CORRECT
