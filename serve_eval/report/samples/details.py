"""Put the details of a sample into words, and count answers by question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from msgspec import UNSET

from serve_eval.evaluation.results.examples import order_ids
from serve_eval.report.samples.samples import SampleSource, ShownSample
from serve_eval.report.text import reveal
from serve_eval.schema import AnsweringServers, Attempt, Failure, FailureKind, Outcome
from serve_eval.storage.scores import ScoreRecord, score_records
from serve_eval.verdicts.validity import REMEDIES

KINDS = {
    FailureKind.HTTP_ERROR: "an HTTP error",
    FailureKind.TIMEOUT: "no answer in time",
    FailureKind.DISCONNECTED: "the connection broke",
    FailureKind.INVALID_RESPONSE: "a response that cannot be used",
    FailureKind.JUDGE_ERROR: "no judgement",
    FailureKind.SCORER_ERROR: "the scorer failed",
}
MOST_ATTEMPTS = 8


def describe_failure(failure: Failure) -> str:
    """Return the failure of a sample in one line."""
    how, message = _how(failure.kind, failure.status), reveal(" ".join(failure.message.split()))
    return message if message.startswith(how) else f"{how}: {message}"


def describe_place(sample: ShownSample) -> str:
    """Return where the extracted answer stands."""
    place = sample.place
    if place is None:
        response = sample.response
        nowhere = response is None or not response.text or bool(response.exchanges)
        return "" if nowhere else "not there literally"
    text = f"line {place.line} of {place.lines}, characters {place.start} to {place.end}"
    return text if place.times == 1 else f"{text}, the last of {place.times} places"


def describe_score(sample: ShownSample) -> str:
    """Return the score with its parts, and those of the reference."""
    if sample.value is None:
        return ""
    said = [f"{sample.value:g}", *(f"{name} {value:g}" for name, value in sample.parts.items())]
    if sample.mode is not None:
        said.append(reveal(sample.mode))
    if sample.reference:
        said.append(f"reference {' '.join(f'{score:g}' for score in sample.reference)}")
    return ", ".join(said)


def describe_end(sample: ShownSample) -> str:
    """Return why the answer ended, and how many tokens were counted."""
    response = sample.response
    if response is None:
        return ""
    said = [f"finish reason {reveal(response.finish_reason)}"] if response.finish_reason else []
    if response.server_finish:
        said.append(f"by the server's word {reveal(response.server_finish)!r}")
    if response.stop_reason:
        said.append(f"stop string {reveal(response.stop_reason)!r}")
    usage = response.usage
    if usage.prompt_tokens or usage.completion_tokens:
        said.append(f"{usage.prompt_tokens} prompt and {usage.completion_tokens} answer tokens")
    if usage.reasoning_tokens:
        said.append(f"{usage.reasoning_tokens} tokens of thoughts")
    if usage.cached_tokens:
        said.append(f"{usage.cached_tokens} of the prompt cached")
    if sample.cut is not None:
        said.append(REMEDIES[sample.cut])
    return "; ".join(said)


def describe_attempts(sample: ShownSample) -> Iterator[str]:
    """Yield a line for each attempt: its outcome, duration, start and server."""
    attempts = sample.attempts
    for number, one in enumerate(attempts[-MOST_ATTEMPTS:], max(0, len(attempts) - MOST_ATTEMPTS)):
        last = number == len(attempts) - 1
        yield f"{number + 1}: {_attempt(one, sample.servers if last else one.servers)}"
    response = sample.response
    if response is not None and response.ttft_s is not None:
        each = "" if response.tpot_s is None else f", {1000 * response.tpot_s:.3g} ms per token"
        yield f"first token after {response.ttft_s:.3g} s{each}"


def _attempt(one: Attempt, servers: AnsweringServers | None) -> str:
    outcome = "answered" if one.failure is None else _how(one.failure, one.status)
    said = f"{outcome} after {one.end_s - one.start_s:.3g} s"
    if one.start_s:
        said += f", sent {datetime.fromtimestamp(one.start_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
    names = () if servers is None else (servers.context, servers.generation)
    if named := [reveal(name) for name in dict.fromkeys(names) if name]:
        said += f", by {' and '.join(named)}"
    return said


def _how(kind: FailureKind, status: int | None) -> str:
    return f"HTTP {status}" if status is not None and status >= 400 else KINDS[kind]


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
