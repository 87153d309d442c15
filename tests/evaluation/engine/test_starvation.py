"""Test the warning about requests that wait far longer than others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.evaluation.engine import load_session
from serve_eval.evaluation.engine.load_session import LEAST_ANSWERS, StarvationWatch
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import Limits, Plan, Spec
from tests.scripted_server import HttpRequest, Reply, ScriptedServer, answer, fail


class _Clock:
    now = waiting_s = 0.0

    def __call__(self) -> float:
        return self.now


def _watch(median_s: float, answers: int) -> tuple[StarvationWatch, _Clock]:
    clock = _Clock()
    watch = StarvationWatch(clock, lambda: clock.waiting_s)
    for number in range(answers):
        watch.begin(number)
        clock.now += median_s
        watch.end(number)
    return watch, clock


@pytest.mark.parametrize(
    ("median_s", "answers", "age_s", "warns"),
    [
        (0.01, LEAST_ANSWERS, 10.1, True),
        (0.01, LEAST_ANSWERS, 9.0, False),
        (0.01, LEAST_ANSWERS - 1, 10.1, False),
        (0.001, LEAST_ANSWERS, 4.9, False),
        (0.001, LEAST_ANSWERS, 5.1, True),
        (1.0, LEAST_ANSWERS, 500.0, False),
    ],
)
def test_a_thousand_medians_and_five_seconds_are_too_long(
    median_s: float, answers: int, age_s: float, warns: bool
) -> None:
    watch, clock = _watch(median_s, answers)
    assert watch.look() is None
    clock.waiting_s = age_s
    said = watch.look()
    assert (said is not None) is warns
    if said is not None:
        assert f"waiting for {age_s:.0f} s" in said
        assert "--concurrency auto" in said
    clock.waiting_s = 0.0
    assert watch.look() is None


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watch warn after .3 s."""
    monkeypatch.setattr(load_session, "TIMES", 3.0)
    monkeypatch.setattr(load_session, "LEAST_S", 0.3)
    monkeypatch.setattr(load_session, "LOOK_S", 0.02)


@pytest.mark.usefixtures("_impatient")
def test_a_run_warns_once_while_requests_starve(tmp_path: Path) -> None:
    async def reply(request: HttpRequest) -> Reply:
        if request.number == 20:
            await asyncio.sleep(1.5)
        return answer("4")

    said = _notices(reply, tmp_path)
    assert sum("has been waiting for" in line for line in said) == 1


def _notices(reply: Callable[[HttpRequest], Awaitable[Reply]], tmp_path: Path) -> list[str]:
    """Return what a run of 90 samples reports."""
    server = ScriptedServer(reply)
    plan = Plan(
        model="m",
        launcher=Spec(name="external", options={}),
        tasks=(Spec(name="word_problems", options={"num_samples": 90}),),
        limits=Limits(concurrency=4),
        no_reference=True,
    )
    said = list[str]()

    async def ask() -> None:
        async with server.serve() as url:
            here = replace(plan, launcher=Spec(name="external", options={"base_url": url}))
            await evaluate(here, tmp_path / "out", environ={}, notify=said.append)

    asyncio.run(ask())
    return said


@pytest.mark.usefixtures("_impatient")
def test_a_pause_that_a_quota_asks_for_is_no_starvation(tmp_path: Path) -> None:
    async def reply(request: HttpRequest) -> Reply:
        if request.number == 80:
            return fail(429, "slow down", {"Retry-After": "1"})
        return answer("4")

    said = _notices(reply, tmp_path)
    assert not [line for line in said if "has been waiting for" in line]
