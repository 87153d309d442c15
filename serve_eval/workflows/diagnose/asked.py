"""The samples of a run that were sent, as the rules of a diagnosis read them.

All of them are in memory at once: about 700 bytes and the text of the answer for each. So what no
rule reads is left out, and equal values are one object.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import force_setattr

from serve_eval.schema import Attempt, Failure, Metric, Outcome, Response
from serve_eval.stats.contingency import find_cut
from serve_eval.storage import journal
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.records.scores import ScoreRecord, SharedValues, score_records


@dataclass(frozen=True, slots=True, kw_only=True)
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
