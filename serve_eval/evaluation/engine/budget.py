"""Count the tokens and the time that a run may cost, and decide if one more request may start.

A request starts while the tokens so far, those expected of the requests in flight and its own stay
within the bound. Requests in flight are awaited, so that what was asked stays a prefix of the
random order: to cancel them would keep the answers that came first, which are the short ones.

Answers in flight are longer than most, since long ones are under way for longer. So each counts as
the mean of an answer's tokens weighted by these tokens, sum(x^2) / sum(x). Before FEW answers came,
it counts as much as it may cost at most.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from serve_eval.client.traffic import count_uncounted, lacks_usage
from serve_eval.plan.prepared_task import request_of
from serve_eval.schema import TIME, TOKENS, Failure, Prompt, Response, Sample, Task

CHARS_PER_TOKEN = 4
"""Characters that count as a token where no server reports tokens and no tokenizer is known."""
FEW = 8
"""Number of answers of a task from which their tokens say what the next one costs."""


@dataclass(slots=True)
class BudgetGroup:
    """The budgets of runs that end together. `ended_by` is the limit that ended the first one."""

    ended_by: str = ""


class Costs:
    """The tokens of the answers of a task so far."""

    def __init__(self) -> None:
        self._answers, self._sum, self._squares = 0, 0.0, 0.0

    def add(self, tokens: float, answers: int = 1) -> None:
        """Count answers with this number of tokens in all."""
        self._answers += answers
        self._sum += tokens
        self._squares += tokens * tokens / max(1, answers)

    def expect(self) -> float | None:
        """Return the tokens that an answer in flight is expected to cost; None if too few came."""
        return self._squares / self._sum if self._answers >= FEW and self._sum > 0.0 else None


class RunBudget:
    """The tokens and seconds that are left of a run, and what is in flight.

    `tokens` and `time_s` are what the run may still cost (None: no bound). The clock starts with
    the first request. Runs of a `group` end together. `charged` are the tokens counted so far, with
    estimates of what no reply reports.
    """

    def __init__(
        self,
        *,
        tokens: float | None = None,
        time_s: float | None = None,
        group: BudgetGroup | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens, self._time_s, self._clock = tokens, time_s, clock
        self._bounded = tokens is not None or time_s is not None or group is not None
        self._group = group or BudgetGroup()
        self._began_s: float | None = None
        self._costs: defaultdict[str, Costs] = defaultdict(Costs)
        self._in_flight: Counter[str] = Counter()
        self._most: dict[str, float] = {}
        self.ended_by, self.charged = "", 0.0

    def know(self, task: str, tokens: float, answers: int) -> None:
        """Note what earlier answers of a task cost, so that the next ones are expected alike."""
        if answers:
            self._costs[task].add(tokens, answers)

    def admits(self, task: Task, sample: Sample) -> bool:
        """Return True if the request for a sample may start, which is then in flight.

        The run ends if not and nothing is in flight: no later answer could make room.
        """
        if not self._bounded:
            return True
        if self.ended_by or self._group.ended_by:
            self._end(self._group.ended_by)
            return False
        now = self._clock()
        self._began_s = now if self._began_s is None else self._began_s
        if self._time_s is not None and now - self._began_s >= self._time_s:
            self._end(TIME)
            return False
        if self._tokens is not None and self._expect(task, sample) > self._tokens:
            if not self._in_flight.total():
                self._end(TOKENS)
            return False
        self._in_flight[task.name] += 1
        return True

    def settle(self, task: Task, sample: Sample, result: Response | Failure | None) -> None:
        """Count the tokens of a result; None: the request was given up, and costs as expected."""
        if not self._bounded:
            return
        self._in_flight[task.name] -= 1
        costs = self._costs[task.name]
        usual = costs.expect()
        if usual is None:
            usual = self._most.get(task.name, 0.0)
        if isinstance(result, Response):
            spent = count_tokens(sample, result)
            costs.add(spent)
            spent += usual * count_uncounted(result)
        else:
            spent = usual * (1 if result is None else count_uncounted(result))
        if self._tokens is not None:
            self._tokens -= spent
            self.charged += spent

    def _expect(self, task: Task, sample: Sample) -> float:
        """Return what the requests in flight and one more are expected to cost."""
        if self._costs[task.name].expect() is None:
            most = bound_cost(task, sample)
            self._most[task.name] = max(most, self._most.get(task.name, 0.0))
        counts = self._in_flight + Counter([task.name])
        return sum(n * self._expect_one(name) for name, n in counts.items())

    def _expect_one(self, task: str) -> float:
        usual = self._costs[task].expect()
        return self._most.get(task, 0.0) if usual is None else usual

    def _end(self, by: str) -> None:
        self.ended_by = self.ended_by or by
        self._group.ended_by = self._group.ended_by or by


def count_tokens(sample: Sample, response: Response) -> float:
    """Return the tokens of a prompt and its answer, by their characters if none are reported."""
    usage = response.usage
    if not lacks_usage(response):
        return usage.prompt_tokens + usage.completion_tokens
    said = len(response.text) + len(response.reasoning or "")
    return (usage.prompt_tokens or estimate_prompt(sample)) + (
        usage.completion_tokens or said / CHARS_PER_TOKEN
    )


def estimate_prompt(sample: Sample) -> float:
    """Return the tokens of a sample's prompt by its characters, those of all its choices."""
    if sample.choices:
        return sum(len(before) + len(one) for before, one in sample.continued) / CHARS_PER_TOKEN
    return count_characters(sample.prompt) / CHARS_PER_TOKEN


def count_characters(prompt: Prompt) -> int:
    """Return the characters of the texts of a prompt."""
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(turn.text) for turn in prompt)


def bound_cost(task: Task, sample: Sample) -> float:
    """Return the tokens that the request for a sample may cost at most, but for its prompt.

    The prompt counts by its characters.
    """
    return estimate_prompt(sample) + count_asked(task, sample)


def count_asked(task: Task, sample: Sample) -> int:
    """Return the largest number of tokens that the requests for a sample allow of its answers."""
    if task.prompt_logprobs:
        return max(1, len(sample.choices))
    return request_of(task, sample).sampling.max_tokens
