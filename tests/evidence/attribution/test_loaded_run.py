"""Whole runs over HTTP whose servers take longer: for their load and prompts, or because slow."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.evidence.attribution.latency import describe_slow
from serve_eval.report.attribution import sentences
from serve_eval.schema import Limits
from tests.workflows.diagnose.server import Act, Asked, Said, Server, answers_to, plan_for, run

SHORT_S = 0.02


class _Queues:
    """Four equal servers, each of which answers one request after the other. g0 gets most."""

    def __init__(self) -> None:
        self.free_s: dict[str, float] = {}

    def answer(self, asked: Asked) -> Said:
        draw = asked.chance("server")
        server = "g0" if draw < 0.7 else f"g{1 + int((draw - 0.7) / 0.1001)}"
        now_s = time.monotonic()
        self.free_s[server] = max(now_s, self.free_s.get(server, 0.0)) + SHORT_S
        delay_s = self.free_s[server] - now_s
        return Said(text=asked.target, servers=("c0", server), delay_s=delay_s)


def _long(asked: Asked) -> Said:
    long = asked.chance("long") < 0.25
    server = "g0" if long else f"g{1 + int(3 * asked.chance('server'))}"
    tokens = 4000 if long else 200
    return Said(
        text=asked.target,
        servers=("c0", server),
        prompt_tokens=tokens,
        delay_s=SHORT_S * (tokens / 200) / 4,
    )


def _slow(asked: Asked) -> Said:
    server = f"g{int(4 * asked.chance('server'))}"
    delay_s = SHORT_S * (10 if server == "g1" else 1)
    return Said(text=asked.target, servers=("c0", server), delay_s=delay_s)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (_Queues().answer, "more_loaded: generation server g0 takes "),
        (_long, "more_loaded: generation server g0 takes "),
        (_slow, "slow_worker: generation server g1 takes "),
    ],
)
def test_a_server_is_called_slow_only_if_its_work_does_not_explain_it(
    tmp_path: Path, act: Act, said: str
) -> None:
    plan = replace(plan_for(tmp_path, num_samples=240), limits=Limits(concurrency=8))
    report = run(plan, Server(act=act, answers=answers_to(plan.tasks[0])), tmp_path / "out")
    [task] = report.tasks
    assert task.attribution is not None
    slow = [row.worker for row in task.attribution.times if row.slow]
    loaded = [row.worker for row in task.attribution.times if row.loaded]
    assert (slow, loaded) == (([], ["g0"]) if said.startswith("more") else (["g1"], []))
    shown = [row for row in task.attribution.times if row.slow or row.loaded]
    told = [*map(describe_slow, shown), *sentences(task.attribution)]
    assert sum(line.startswith(said) for line in told) == (2 if loaded else 1)
