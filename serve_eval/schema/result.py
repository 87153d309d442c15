"""Define the result of one task, and the beginning of every file of results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from serve_eval.frozen import freeze
from serve_eval.schema.score import MEAN, Metric, Outcome


@freeze
class ResultHeader:
    """The keys with which the result of every command begins.

    `model` is the one that was judged (None: not known, or several). `started_at` is the time in
    ISO 8601 ("": not known), and `wall_s` the seconds from then to the end. `rehearsal`: the
    stand-in answered, so that nothing was judged.
    """

    schema_version: int = 1
    started_at: str
    wall_s: float
    model: str | None = None
    exit_code: int
    rehearsal: bool = False


@freeze
class Stability:
    """The agreement of `repeats` answers to the same prompts.

    `prompts` are those with a score each time. `sd` is the standard deviation of one run's value in
    points that comes from the endpoint's own noise: by the variance of the scores of a prompt, or
    of the repeats' values if the value is not a mean. For right/wrong scores: `flip_rate`, the
    chance that two repeats disagree on a prompt; `mixed`, the share of prompts that were both;
    Cochran's Q with `df` and `p`, low if repeats differ as a whole. `pass_at` has pass@k in percent
    by k, and `pass_bounds` what the missing answers allow, from `answered` of `asked` answers;
    `majority` is the value in points if the repeats vote (None: answers are not discrete, or the
    value is not a mean), with `tied` of the `voted` prompts that had several most frequent answers,
    whose scores are averaged. `se` is the standard error of the value by question, for questions
    like these, and `se_runs` that over the runs, for these questions (None: an older version, or
    the value is not a mean). `identical` counts the prompts with one text all the times (None: an
    older version did not count); every request had the `seed` (None: the server draws) and the
    `temperature` (None: the server's).
    """

    repeats: int
    prompts: int
    sd: float
    flip_rate: float | None
    mixed: float | None
    cochran_q: float | None
    df: int
    p: float | None
    pass_at: Mapping[str, float]
    majority: float | None
    identical: int | None = None
    seed: int | None = None
    temperature: float | None = None
    se: float | None = None
    se_runs: float | None = None
    pass_bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    answered: int | None = None
    asked: int | None = None
    voted: int | None = None
    tied: int | None = None


@freeze
class UnscoredSample:
    """A sample without a score, and what was expected (None for a hold-out sample)."""

    id: str
    expected: str | None


@freeze
class ScorerError:
    """An error or a time-out of a scorer on `count` samples, of which `sample` is one.

    `samples` are the first of them.
    """

    told: str
    count: int
    sample: str
    samples: tuple[UnscoredSample, ...] = ()

    @property
    def line(self) -> str:
        """The error in one line."""
        answers = "1 answer has" if self.count == 1 else f"{self.count} answers have"
        return f"{answers} no score, for example sample {self.sample}: {self.told}"


@freeze
class TaskResult:
    """The result of a task. Counts: planned = scored + failed + spared (by an early stop).

    `value` (points) is over the scored samples only and None if there are none; `bounds` are the
    lowest and highest value that the missing answers allow (Manski bounds). `bounds` is None after
    an early stop, and if something is missing while the metric is unbounded or the aggregation not
    monotone. Each repeat counts as a sample, and `stability` shows how they agree. `aggregation` is
    the name of the function that made the value of the scores; `secondary` are further values in
    points. `modes` counts in which ways answers failed, for a task that reports them.
    `interval` is that of the value with 95 % confidence, for questions like these, with missing
    answers at their best and worst (None: after an early stop, or if it cannot be computed).
    `scorer_errors` caused the failures of that kind, the most frequent first. `hook_errors` are
    errors of the task's other functions, whose figures are left out. The server ended `looping`
    answers because they repeat themselves. `unlisted_finishes` counts the answers with each
    finish_reason of no known server, which may have been cut.

    `repaired` of the scored samples lost an earlier answer in a failed attempt, and `restarted`
    others lost it when the server ended; `unlisted` others have a finish_reason of no known server.
    Their first answers are unknown: `doubted_bounds` are the `bounds` that these allow too (None:
    as for `bounds`).

    `cut` counts the scored answers that were cut off, by their causes, and `cut_value` is the
    value if all of these were right, with the bounds `cut_bounds` (None: nothing was cut, or
    answers can be partly right). The longest answer that the server's window cut has
    `window_tokens`, and the longest that nothing cut `longest_whole`: tokens, or characters if the
    server counts no tokens.
    """

    task: str
    metric: Metric
    planned: int
    scored: int
    failed: int
    truncated: int
    stopped_in_reasoning: int
    outcomes: Mapping[str, int]
    failures: Mapping[str, int]
    value: float | None
    bounds: tuple[float, float] | None
    parts: Mapping[str, float]
    breakdown: Mapping[str, object]
    spared: int = 0
    stability: Stability | None = None
    aggregation: str = MEAN.name
    secondary: Mapping[str, float] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)
    scorer_errors: tuple[ScorerError, ...] = ()
    hook_errors: tuple[str, ...] = ()
    interval: tuple[float, float] | None = None
    looping: int = 0
    unlisted_finishes: Mapping[str, int] = field(default_factory=dict)
    repaired: int = 0
    restarted: int = 0
    unlisted: int = 0
    doubted_bounds: tuple[float, float] | None = None
    cut: Mapping[str, int] = field(default_factory=dict)
    cut_value: float | None = None
    cut_bounds: tuple[float, float] | None = None
    window_tokens: int | None = None
    longest_whole: int | None = None

    @property
    def cut_answers(self) -> int:
        """The number of scored answers that were cut off."""
        return sum(self.cut.values())

    @property
    def cut_in_thoughts(self) -> int:
        """The number of scored answers that a limit cut within the model's thoughts."""
        return max(0, self.outcomes.get(Outcome.REASONING_ONLY, 0) - self.stopped_in_reasoning)

    @property
    def unanswered(self) -> int:
        """The number of samples without an answer, or with one in which no result was found."""
        silent = (Outcome.UNPARSED, Outcome.EMPTY, Outcome.REASONING_ONLY, Outcome.REFUSED)
        return self.failed + sum(self.outcomes.get(outcome, 0) for outcome in silent)

    @property
    def doubted(self) -> int:
        """The number of scored samples whose first answers are unknown."""
        return self.repaired + self.restarted + self.unlisted

    @property
    def unparsed(self) -> int:
        return self.outcomes.get(Outcome.UNPARSED, 0)
