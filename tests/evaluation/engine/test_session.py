"""Test the progress events of a session, and its long steps by a moved clock.

The speed of the machine does not matter.
"""

import asyncio
import io
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from serve_eval import pace
from serve_eval.cli._streams import LongSteps
from serve_eval.client.client import Client
from serve_eval.errors import DatasetError, PlanError, ServerEndedError
from serve_eval.evaluation.engine import runner
from serve_eval.evaluation.engine.lane import Lane
from serve_eval.evaluation.engine.load_session import LEAST_ANSWERS, LoadSession, StarvationWatch
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.pace import Pace
from serve_eval.schema import Endpoint, Limits, Response
from serve_eval.storage.journal import Journal
from tests.clock import until
from tests.evaluation.engine.test_runner import _samples, _task


def made(kind=LoadSession, **limits):
    client = Client(Endpoint(base_url="http://127.0.0.1:9/v1"), Limits(**limits))
    client.retries, client.retry_budget = 2, 100
    client.attempts.max_in_flight, client.attempts.cancelled = 3, 1
    return kind(client, 7)


class Told:
    """A progress that records its events."""

    def __init__(self):
        self.events = []

    def begin(self, name, planned, scored):
        self.events.append(f"{name} begins: {planned}")

    def update(self, name, scored, failed, value):
        self.events.append(f"{name} {scored}")

    def end(self, name):
        self.events.append(f"{name} ends")


def test_a_load_is_rounded_to_milliseconds():
    session = made()
    session.lag_s, session.wall_s, session.finished = 0.12345, 2.34567, 5
    load = session.load()
    assert (load.loop_lag_s, load.wall_s, load.finished, load.order_seed) == (0.123, 2.346, 5, 7)
    assert (load.max_in_flight, load.retries, load.retry_budget, load.cancelled) == (3, 2, 100, 1)


async def test_the_lag_is_the_most_by_which_a_timer_was_late(
    monkeypatch,
):
    session, now, late = made(), [50.0], iter((0.25, 0.75, 0.5))
    monkeypatch.setattr(
        runner.asyncio, "get_running_loop", lambda: SimpleNamespace(time=lambda: now[0])
    )

    async def sleep(seconds):
        now[0] += seconds + next(late, 0.0)
        if now[0] > 60.0:
            raise asyncio.CancelledError

    monkeypatch.setattr(runner.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await runner.measure_lag(session)
    assert session.lag_s == pytest.approx(0.75)


async def test_a_task_ends_before_the_next_one_begins(monkeypatch, tmp_path):
    async def send(client, task, sample, *, alone, lane):
        await asyncio.sleep(0)
        return Response(text="A", finish_reason="stop")

    monkeypatch.setattr("serve_eval.evaluation.engine.runner.send.send", send)
    told = Told()
    with Journal(tmp_path / "a") as first, Journal(tmp_path / "b") as second:
        lanes = [
            Lane(name, ScoreAccumulator(_task(), _samples(2)), journal, range(2))
            for name, journal in (("one", first), ("two", second))
        ]
        await runner.ask(made(concurrency=1), lanes, progress=told)
    expected = [[f"{n} begins: 2", f"{n} 0", f"{n} 2", f"{n} ends"] for n in ("one", "two")]
    assert told.events == [*expected[0], *expected[1]]


class Counting(LoadSession):
    """Counts all workers that were started."""

    started = 0

    def __setattr__(self, name, value):
        if name == "workers" and value > getattr(self, name, 0):
            self.started += 1
        super().__setattr__(name, value)


class Decides:
    """An early stop that the first answer decides."""

    def restart(self):
        pass

    def look(self):
        return True


async def test_a_decided_task_gives_up_what_is_in_flight_and_starts_nobody_for_what_is_not(
    monkeypatch, tmp_path
):
    session, asked, given_up = made(Counting, concurrency=4), [], []

    async def send(client, task, sample, *, alone, lane):
        asked.append(sample.prompt)
        try:
            await (
                asyncio.sleep(0.01)
                if sample.prompt in ("question 0", "last")
                else asyncio.Event().wait()
            )
        except asyncio.CancelledError:
            given_up.append(sample.prompt)
            raise
        return Response(text="A", finish_reason="stop")

    monkeypatch.setattr("serve_eval.evaluation.engine.runner.send.send", send)
    with Journal(tmp_path / "a") as first, Journal(tmp_path / "b") as second:
        last = [replace(sample, prompt="last") for sample in _samples(1)]
        lanes = [
            Lane(
                "one", ScoreAccumulator(_task(), _samples(100)), first, range(100), early=Decides()
            ),
            Lane("two", ScoreAccumulator(_task(), last), second, range(1)),
        ]
        await asyncio.wait_for(runner.ask(session, lanes), 20)
        assert [record.id for record in first.records()] == ["s0"]
        assert [record.id for record in second.records()] == ["s0"]
    assert asked == ["question 0", "question 1", "question 2", "question 3", "last"]
    assert sorted(given_up) == ["question 1", "question 2", "question 3"]
    assert isinstance(session, Counting)
    assert (session.started, session.finished) == (4, 2)


async def test_a_connection_out_of_step_is_said_while_others_are_asked(monkeypatch, tmp_path):
    session, told = made(concurrency=1), []
    session._notify = told.append

    async def send(client, task, sample, *, alone, lane):
        if sample.id == "s0":
            session.out_of_step(1, "a second message came after a complete answer")
        else:
            await asyncio.wait_for(until(lambda: bool(told)), 10)
        return Response(text="A", finish_reason="stop")

    monkeypatch.setattr("serve_eval.evaluation.engine.runner.send.send", send)
    with Journal(tmp_path / "a") as journal:
        await runner.ask(
            session, [Lane("one", ScoreAccumulator(_task(), _samples(3)), journal, range(3))]
        )
    assert told == [
        "warning: a connection returned a response that no request had asked for, which shifted"
        " later responses to other requests; doubtful answers are withdrawn and asked again"
    ]


def ask_with(
    monkeypatch,
    folder,
    send,
    session,
    *,
    samples=3,
    told=None,
):
    """Ask the samples of a lane by this function in place of the client, and return the lane."""
    monkeypatch.setattr("serve_eval.evaluation.engine.runner.send.send", send)
    with Journal(folder / "a") as journal:
        lane = Lane("one", ScoreAccumulator(_task(), _samples(samples)), journal, range(samples))
        asyncio.run(asyncio.wait_for(runner.ask(session, [lane], progress=told), 20))
    return lane


RIGHT = Response(text="A", finish_reason="stop")


def test_results_are_shown_while_others_are_awaited(monkeypatch, tmp_path):
    told = Told()

    async def send(client, task, sample, *, alone, lane):
        if sample.id == "s2":
            await asyncio.wait_for(until(lambda: "one 2" in told.events), 10)
        return RIGHT

    ask_with(monkeypatch, tmp_path, send, made(concurrency=1), told=told)
    assert told.events == ["one begins: 3", "one 0", "one 2", "one 3", "one ends"]


@pytest.mark.parametrize("end", [ServerEndedError("the server ended"), None])
def test_a_sudden_end_notes_what_was_in_flight(monkeypatch, tmp_path, end):
    session = made(concurrency=1)

    async def send(client, task, sample, *, alone, lane):
        if sample.id == "s1":
            if end is not None:
                raise end
            for one in asyncio.all_tasks():  # as on a signal
                one.cancel()
            await asyncio.Event().wait()
        return RIGHT

    with pytest.raises((ServerEndedError, asyncio.CancelledError)):
        ask_with(monkeypatch, tmp_path, send, session)
    assert [(lane.name, i) for lane, i in session.cut_off] == [("one", 1)]


def test_answered_requests_do_not_starve(monkeypatch, tmp_path):
    session, waiting_s = made(concurrency=1), [0.0]
    session.starvation = StarvationWatch(lambda: 0.0, lambda: waiting_s[0])

    async def send(client, task, sample, *, alone, lane):
        return RIGHT

    ask_with(monkeypatch, tmp_path, send, session, samples=LEAST_ANSWERS)
    assert session.starvation.look() is None
    waiting_s[0] = 1000.0
    assert session.starvation.look() is not None


async def test_each_doubt_withdraws_once():
    class Doubted:
        def __init__(self):
            self.doubt, self.withdrawn = asyncio.Event(), 0

        async def withdraw(self, lanes):
            assert not self.doubt.is_set(), "a doubt from here on counts again"
            self.withdrawn += 1
            await asyncio.sleep(0)

    session, found = Doubted(), []
    task = asyncio.create_task(runner.withdraw(cast("LoadSession", session), []))
    for _ in range(2):
        session.doubt.set()
        for _ in range(20):
            await asyncio.sleep(0)
        found.append(session.withdrawn)
    assert not task.done()
    task.cancel()
    assert found == [1, 2]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def told(monkeypatch):
    said = []
    monkeypatch.setattr(pace, "EVERY", 1)
    with pace.notify_to(lambda line, last: said.append((line, last))):
        yield said


def test_a_step_of_less_than_a_second_says_nothing(told):
    clock = Clock()
    step = Pace("a.yaml", 3, "lines", clock=clock)
    clock.now += 0.9
    step.at(3)
    step.end()
    assert told == []


def test_a_longer_step_says_how_far_it_is_and_that_it_is_over(told):
    clock = Clock()
    step = Pace("a.yaml", 30, "lines", clock=clock)
    for line in (10, 20, 30):
        clock.now += 2
        step.at(line)
    step.end()
    assert told == [
        ("a.yaml: 10 of 30 lines, 2 s", False),
        ("a.yaml: 20 of 30 lines, 4 s", False),
        ("a.yaml: 30 of 30 lines, 6 s", False),
        ("a.yaml: 30 of 30 lines, 6 s", True),
    ]


def test_a_step_that_takes_too_long_ends_and_says_what_to_do(told, monkeypatch):
    clock = Clock()
    step = Pace("a.yaml", 30, "lines", DatasetError, clock=clock)
    clock.now += pace.LIMIT_S
    with pytest.raises(
        DatasetError, match=r"^a\.yaml: took longer than 300 s; it had done 7 of 30 lines$"
    ) as caught:
        step.at(7)
    assert "SERVE_EVAL_READING_TIMEOUT=600" in caught.value.hint
    monkeypatch.setenv(pace.VARIABLE, "5.5")
    step = Pace("a.yaml", 30, "lines", clock=clock)
    clock.now += 5
    step.at(7)
    clock.now += 1
    with pytest.raises(PlanError, match=r"longer than 5\.5 s"):
        step.at(8)


@pytest.mark.parametrize("given", ["soon", "0", "-1", "nan"])
def test_a_limit_that_is_none_is_refused(given, monkeypatch):
    monkeypatch.setenv(pace.VARIABLE, given)
    with pytest.raises(
        PlanError, match=f"SERVE_EVAL_READING_TIMEOUT={given}: not a number of seconds"
    ):
        Pace("a.yaml", 1, "lines")


class _Stream(io.StringIO):
    def __init__(self, *, terminal):
        super().__init__()
        self._terminal = terminal

    def isatty(self):
        return self._terminal


def _shown(monkeypatch, *, terminal):
    stream, clock = _Stream(terminal=terminal), Clock()
    monkeypatch.setattr(sys, "stderr", stream)
    steps = LongSteps(clock)
    for number in range(8):
        steps(f"line {number}\x1b[2J", False)
        clock.now += 1
    steps("over", True)
    return stream.getvalue()


def test_a_terminal_has_one_line_which_goes_and_a_file_a_line_now_and_then(
    monkeypatch,
):
    on_terminal = _shown(monkeypatch, terminal=True)
    assert on_terminal.count("\r") == 9
    assert "\n" not in on_terminal
    assert on_terminal.endswith("\r\x1b[K")
    assert "2J" not in on_terminal
    assert _shown(monkeypatch, terminal=False) == "line 0\nline 5\nover\n"
