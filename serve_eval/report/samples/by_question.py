"""Count the answers of a run by question, for a task whose prompts were asked several times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import UNSET

from serve_eval.evaluation.results.examples import order_ids
from serve_eval.report.samples.samples import SampleSource
from serve_eval.schema import Outcome
from serve_eval.storage.records.scores import ScoreRecord, score_records


@dataclass
class RepeatedQuestion:
    """The answers to one question, which was asked `asked` times.

    `outcomes` counts those with a score by outcome, and `total` is the sum of their scores. `cut`
    of them were cut off, and `different` are the hashes of the results that were found in them.
    """

    id: str
    asked: int
    outcomes: dict[Outcome, int] = field(default_factory=dict)
    total: float = 0.0
    cut: int = 0
    different: set[int] = field(default_factory=set)

    @property
    def answered(self) -> int:
        """The number of answers with a score."""
        return sum(self.outcomes.values())

    @property
    def right(self) -> int:
        """The number of answers that are wholly right."""
        return self.outcomes.get(Outcome.CORRECT, 0)

    @property
    def share(self) -> float:
        """The share of right answers among those that were asked."""
        return self.right / self.asked

    def add(self, line: ScoreRecord) -> None:
        """Count an answer."""
        self.outcomes[line.outcome] = self.outcomes.get(line.outcome, 0) + 1
        self.total += line.value
        self.cut += line.cut is not UNSET
        if line.answer is not None:
            self.different.add(hash(line.answer))


def count_by_question(source: SampleSource, repeats: int) -> list[RepeatedQuestion]:
    """Return the questions of a task, those first that were right most often.

    A question without any score is not known. Raises RunFolderError for a damaged file.
    """
    return sort_questions(source, score_records(source.run, source.task, unfinished=True), repeats)


def sort_questions(
    source: SampleSource, lines: Iterable[ScoreRecord], repeats: int
) -> list[RepeatedQuestion]:
    """Return the questions that scores belong to, those first that were right most often."""
    last = {line.id: line for line in lines}
    found: dict[str, RepeatedQuestion] = {}
    for name, line in last.items():
        base = source.base(name)
        found.setdefault(base, RepeatedQuestion(base, repeats)).add(line)
    return sorted(found.values(), key=lambda one: (-one.share, -one.total, order_ids(one.id)))
