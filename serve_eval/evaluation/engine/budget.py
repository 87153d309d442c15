"""Count the tokens and the time that a run may cost, and decide if one more request may start.

A request starts while the tokens so far, those expected of the requests in flight and its own stay
within the bound. Requests in flight are awaited, so that what was asked stays a prefix of the
random order: to cancel them would keep the answers that came first, which are the short ones.

Answers that came first are shorter than most, so that an answer says what the next ones cost only
when all that started before it have come. Answers in flight are longer than most, since long ones
are under way for longer: each counts as the mean of an answer's tokens weighted by these tokens,
sum(x^2) / sum(x), where one more answer costs as much as one may: few answers show no long tail.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from serve_eval.client.traffic import count_uncounted, lacks_usage
from serve_eval.plan.prepared_task import request_of
from serve_eval.protocol.conversation import bound_requests, list_prompts
from serve_eval.schema import TIME, TOKENS, Failure, Prompt, Response, Sample, Task

CHARS_PER_TOKEN = 4
"""Characters that count as a token where no server reports tokens and no tokenizer is known."""


@dataclass(slots=True)
class BudgetGroup:
    """The budgets of runs that end together. `ended_by` is the limit that ended the first one."""

    ended_by: str = ""


class Costs:
    """The tokens of the answers of a task, in the order of starts up to the first missing one.

    `most` is the largest number that one may cost.
    """

    def __init__(self) -> None:
        self._sum = self._squares = self.most = 0.0
        self._started: deque[str] = deque()
        self._came: dict[str, float | None] = {}

    @property
    def in_flight(self) -> int:
        """The number of requests that have started and have no result."""
        return len(self._started) - len(self._came)

    def start(self, sample: str) -> None:
        """Note that the request for a sample starts."""
        self._started.append(sample)

    def end(self, sample: str, tokens: float | None) -> None:
        """Note what the answer to a sample cost; None: it has none."""
        self._came[sample] = tokens
        while self._started and self._started[0] in self._came:
            first = self._came.pop(self._started.popleft())
            if first is not None:
                self.add(first)

    def add(self, tokens: float, answers: int = 1) -> None:
        """Count answers with this number of tokens in all."""
        self._sum += tokens
        self._squares += tokens * tokens / max(1, answers)

    def expect(self) -> float:
        """Return the tokens that an answer in flight is expected to cost."""
        whole = self._sum + self.most
        return (self._squares + self.most * self.most) / whole if whole else 0.0


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
            if not any(one.in_flight for one in self._costs.values()):
                self._end(TOKENS)
            return False
        self._costs[task.name].start(sample.id)
        return True

    def settle(self, task: Task, sample: Sample, result: Response | Failure | None) -> None:
        """Count the tokens of a result; None: the request was given up, and costs as expected."""
        if not self._bounded:
            return
        costs = self._costs[task.name]
        usual = costs.expect()
        if isinstance(result, Response):
            spent = count_tokens(sample, result)
            costs.end(sample.id, spent)
            spent += usual * count_uncounted(result)
        else:
            costs.end(sample.id, None)
            spent = usual * (1 if result is None else count_uncounted(result))
        if self._tokens is not None:
            self._tokens -= spent
            self.charged += spent

    def _expect(self, task: Task, sample: Sample) -> float:
        """Return what the requests in flight and one more are expected to cost."""
        here = self._costs[task.name]
        here.most = max(here.most, bound_cost(task, sample))
        return here.expect() + sum(one.in_flight * one.expect() for one in self._costs.values())

    def end(self, by: str) -> None:
        """Start no more request, for the reason `by`."""
        self._bounded = True
        self._end(by)

    def _end(self, by: str) -> None:
        self.ended_by = self.ended_by or by
        self._group.ended_by = self._group.ended_by or by


def count_tokens(sample: Sample, response: Response) -> float:
    """Return the tokens of a prompt and its answer, by their characters if none are reported."""
    usage = response.usage
    if not lacks_usage(response):
        return usage.prompt_tokens + usage.completion_tokens
    if response.exchanges:
        once = replace(sample, conversation=None)
        return sum(count_tokens(once, one.response) for one in response.exchanges)
    said = len(response.text) + len(response.reasoning or "")
    return (usage.prompt_tokens or estimate_prompt(sample)) + (
        usage.completion_tokens or said / CHARS_PER_TOKEN
    )


def estimate_prompt(sample: Sample) -> float:
    """Return the tokens of a sample's prompts by their characters: of all choices or turns."""
    if sample.choices:
        return sum(len(before) + len(one) for before, one in sample.continued) / CHARS_PER_TOKEN
    return sum(map(count_characters, list_prompts(sample))) / CHARS_PER_TOKEN


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
    most = request_of(task, sample).sampling.max_tokens
    if sample.conversation is None:
        return most
    return most * bound_requests(sample.conversation)
