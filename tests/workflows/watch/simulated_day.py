"""A watch on an endpoint whose accuracy depends on the hour, without an endpoint."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from serve_eval.workflows.watch import judging
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.record import Seen, State, WatchAlarm

PROMPTS, MOST, EVERY = 60, 20, timedelta(minutes=10)
NIGHT = WatchRules(passes=8, tolerance=0.01, max_error_rate=0.05)
DAY = WatchRules(passes=8, tolerance=0.01, max_error_rate=0.05, baseline_hours=24.0)
START = datetime(2026, 1, 1, tzinfo=UTC)
Chance = Callable[[datetime], float]


def by_day(loss: float) -> Chance:
    """Return the factor on the chances of right answers: 1, and less from 9 to 17 o'clock."""
    return lambda at: 1.0 - loss if 9 <= at.hour < 17 else 1.0


class Watch:
    """A watch of prompts that are answered right with `right`, by default 90 %, times a factor."""

    def __init__(
        self,
        rules: WatchRules,
        seed: int,
        at: datetime = START,
        right: Sequence[float] = (0.9,) * PROMPTS,
    ) -> None:
        self.rules, self.at, self._random = rules, at, random.Random(seed)
        self._right = right
        rows = [[] for _ in range(PROMPTS)], [[] for _ in range(PROMPTS)]
        self.state = State(
            bound={},
            seed=seed,
            model="m",
            chat=True,
            answers=rows[0],
            usable=rows[1],
            misses=[0] * PROMPTS,
            prompt_tokens=[50] * PROMPTS,
        )

    def play(self, chance: Chance, rounds: int) -> list[WatchAlarm]:
        """Return the alarms of so many rounds."""
        found = []
        for _ in range(rounds):
            asked = judging.questions_of(self.state, self.rules, MOST)
            seen = Seen(
                round=self.state.rounds + 1,
                started_at=self.at.isoformat(),
                seconds=1.0,
                asked=asked,
                values=[
                    float(self._random.random() < self._right[i] * chance(self.at)) for i in asked
                ],
                usable="1" * len(asked),
                prompt_tokens=[20] * len(asked),
                failures={},
            )
            found += judging.judge(self.state, seen, self.rules)
            self.at += EVERY
        return found

    def learn(self, chance: Chance) -> int:
        """Return the rounds of the baseline."""
        while self.state.accuracy is None:
            assert not self.play(chance, 1)
        return self.state.rounds
