import asyncio
import os
import random
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.client import Client
from serve_eval.errors import EndpointError
from serve_eval.evaluation.engine.budget import RunBudget
from serve_eval.evaluation.engine.lane import Lane
from serve_eval.evaluation.engine.load_session import START, LoadSession
from serve_eval.evaluation.engine.runner import DEAD_AFTER, CircuitBreaker, ask
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.results.sample_table import UNLISTED_FINISH
from serve_eval.evaluation.results.scoring import score_response
from serve_eval.evaluation.task_run import replay
from serve_eval.launchers._simulated.simulator import STATS, SimulatorConfig, _Simulator, create_app
from serve_eval.schema import (
    Endpoint,
    Failure,
    FailureKind,
    Hypothesis,
    Limits,
    Metric,
    Outcome,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.schema.media import prompt_sha256
from serve_eval.scorers.choice import prefix_match
from serve_eval.storage.journal import Journal, scan
from serve_eval.verdicts.validity import remarks
from tests.client import faulty_server as act
from tests.client.faulty_server import FaultyServer
from tests.client.kept import client_of
from tests.clock import until
from tests.scripted_server import (
    ScriptedServer,
    answer,
    fail,
    hand_over,
    hang_up,
    json_reply,
    raw,
    reset,
    serve,
    when,
)


def _load(roots, wanted):
    raise NotImplementedError


def _task(**more):
    fields = {
        "name": "letters",
        "version": 1,
        "reference_file": "letters",
        "metric": Metric(),
        "hypothesis": Hypothesis(num_samples=10),
        "sampling": SamplingParams(max_tokens=5),
        "protocol": {},
        "load": _load,
        "score": lambda sample, response: prefix_match(response.text, sample.target),
        "answers": lambda sample: (" A", " B"),
    }
    return Task(**{**fields, **more})


def _samples(count):
    return [Sample(id=f"s{i}", prompt=f"question {i}", target="A") for i in range(count)]


RIGHT, WRONG = (Response(text=text, finish_reason="stop") for text in ("A", "B"))
FAILED = Failure(kind=FailureKind.TIMEOUT, message="no byte")


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (Response(text="  \n", finish_reason="stop"), Outcome.EMPTY),
        (Response(text="", finish_reason="length", reasoning="hm"), Outcome.REASONING_ONLY),
        (Response(text="", finish_reason="stop", refusal="I will not"), Outcome.REFUSED),
        (Response(text="", finish_reason="content_filter"), Outcome.REFUSED),
        (Response(text="A", finish_reason="length"), Outcome.CORRECT),
        (Response(text="42", finish_reason="stop"), Outcome.UNPARSED),
    ],
)
def test_an_answer_without_a_text_scores_0_and_says_why(response, outcome):
    score = score_response(_task(), _samples(1)[0], response)
    assert score.outcome is outcome
    assert score.value == float(outcome is Outcome.CORRECT)


def test_a_failure_is_counted_never_scored():
    accumulator = ScoreAccumulator(_task(), _samples(4))
    for i, result in enumerate([RIGHT, WRONG, FAILED]):
        accumulator.add(i, result)
    result = accumulator.result()
    assert (result.planned, result.scored, result.failed) == (4, 2, 2)
    assert result.value == 50.0
    assert result.bounds == (25.0, 75.0)
    assert result.outcomes == {"correct": 1, "wrong": 1}
    assert result.failures == {"timeout": 1}


def test_looping_and_unlisted_answers_are_scored_and_counted():
    accumulator = ScoreAccumulator(_task(), _samples(6), known_finishes=("My_End",))
    ends = ("repetition", "odd", "other", "odd", "my_end", "stop")
    said = [Response(text="A", finish_reason=end) for end in ends]
    for i, response in enumerate(said):
        accumulator.add(i, response)
    result = accumulator.result()
    assert (result.scored, result.value, result.looping, result.truncated) == (6, 100.0, 1, 0)
    assert result.unlisted_finishes == {"odd": 2, "other": 1}
    flagged = [bool(flags & UNLISTED_FINISH) for flags in accumulator.flags]
    assert flagged == [False, True, True, True, False, False]
    for i in (0, 1, 2):
        accumulator.forget(i, said[i])
    result = accumulator.result()
    assert (result.scored, result.looping, result.unlisted_finishes) == (3, 0, {"odd": 1})


def test_many_different_reasons_are_counted_together():
    accumulator = ScoreAccumulator(_task(), _samples(300))
    for i in range(300):
        accumulator.add(i, Response(text="A", finish_reason=f"reason {i}"))
    assert sum(accumulator.result().unlisted_finishes.values()) == 300


def test_a_report_names_looping_and_unlisted_answers_once():
    accumulator = ScoreAccumulator(_task(), _samples(3))
    for i, end in enumerate(("repetition", "it's over", "it's over")):
        accumulator.add(i, Response(text="A", finish_reason=end))
    looping, unlisted = remarks(accumulator.result(), max_tokens=256)
    assert looping.startswith("1 of 3 answers repeat themselves")
    assert unlisted.startswith('2 of 3 answers end with a finish_reason of no known server ("it')
    assert "--set limits.known_finish_reasons='it'\"'\"'s over'" in unlisted


def test_a_failure_that_is_answered_later_no_longer_counts_but_never_the_other_way_round():
    accumulator = ScoreAccumulator(_task(), _samples(1))
    for result in (FAILED, FAILED, RIGHT, FAILED, WRONG):
        accumulator.add(0, result)
    assert (accumulator.scored, accumulator.failed, accumulator.result().value) == (1, 0, 100.0)


def test_a_task_without_an_answer_has_no_value():
    accumulator = ScoreAccumulator(_task(), _samples(2))
    accumulator.add(0, FAILED)
    result = accumulator.result()
    assert (result.value, result.bounds, result.scored) == (None, (0.0, 100.0), 0)


@given(
    st.lists(st.sampled_from(["right", "wrong", "partial", "failed"]), min_size=1, max_size=40),
    st.randoms(),
)
def test_the_result_does_not_depend_on_the_order_of_the_answers(kinds, rng):
    def score(sample, response):
        value = float(response.text)
        return Score(value=value, outcome=Outcome.PARTIAL, parts={"half": value / 2})

    answers = {"right": "1", "wrong": "0.1", "partial": "0.3333333333333333"}
    made = [
        FAILED if kind == "failed" else Response(text=answers[kind], finish_reason="length")
        for kind in kinds
    ]
    order = list(range(len(made)))
    results = []
    for _ in range(2):
        accumulator = ScoreAccumulator(_task(score=score), _samples(len(made)))
        for i in order:
            accumulator.add(i, made[i])
        results.append(accumulator.result())
        rng.shuffle(order)
    assert results[0] == results[1]
    assert results[0].scored + results[0].failed == results[0].planned
    assert results[0].truncated == results[0].scored


@given(st.integers(1, 400), st.integers(0, 400))
def test_with_nothing_missing_the_bounds_are_the_value_to_the_last_bit(right, wrong):
    accumulator = ScoreAccumulator(_task(), _samples(right + wrong))
    for i in range(right + wrong):
        accumulator.add(i, RIGHT if i < right else WRONG)
    result = accumulator.result()
    assert result.bounds == (result.value, result.value)


def test_an_unbounded_metric_has_no_bounds_once_something_is_missing():
    accumulator = ScoreAccumulator(_task(metric=Metric(hi=None)), _samples(2))
    accumulator.add(0, RIGHT)
    assert accumulator.result().bounds is None
    accumulator.add(1, RIGHT)
    assert accumulator.result().bounds == (100.0, 100.0)


# ------------------------------------------------------------------------------------------ against
# a real socket


def _answers(path, samples):
    entry = {"right": " A", "wrong": " B", "probability": 0.5}
    lines = [
        msgspec.json.encode({"sha256": prompt_sha256(sample.prompt), **entry}) for sample in samples
    ]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def _run(server, samples, journal_path, **limits):
    """Run one task: ask all samples, then retry the failed ones once."""
    return _session(server, samples, journal_path, **limits)[0]


def _session(server, samples, journal_path, **limits):
    async def main():
        chosen = Limits(**{"concurrency": 16, "retry_budget": 100_000, **limits})
        async with (
            serve(server) as url,
            Client(Endpoint(base_url=url, model="simulated"), chosen) as client,
        ):
            with Journal(journal_path) as journal:
                accumulator = ScoreAccumulator(_task(), samples)
                replay(journal, accumulator)
                session = LoadSession(client, order_seed=0)
                lane = Lane("letters", accumulator, journal, list(accumulator.list_unanswered()))
                await ask(session, [lane], watch=CircuitBreaker(answered=0))
                await ask(
                    session,
                    [Lane("letters", accumulator, journal, list(accumulator.worth_another_pass()))],
                )
                return accumulator, session.load()

    return asyncio.run(main())


def test_every_sample_gets_its_own_answer_and_is_asked_once(tmp_path):
    samples = _samples(500)
    app = create_app(SimulatorConfig(answers=_answers(tmp_path / "a", samples), latency_s=0.2))
    accumulator = _run(app, samples, tmp_path / "j", concurrency=64)
    with Journal(tmp_path / "j") as journal:
        records = {record.id: record.response for record in journal.records()}
    assert len(records) == 500
    stats = app[STATS]
    assert set(stats.requests.values()) == {1}
    assert stats.max_concurrent == 64
    assert 40 < (accumulator.result().value or 0) < 60
    again = ScoreAccumulator(_task(), samples)
    with Journal(tmp_path / "j") as journal:
        assert replay(journal, again) == 500
    assert again.result() == accumulator.result()


def test_what_failed_is_asked_once_more_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("serve_eval.client.attempts.outcome.BASE_S", 0.001)
    samples = _samples(200)
    faults = {"failure_rate": 0.05, "failure_kind": "500", "failures_per_prompt": 5}
    app = create_app(SimulatorConfig(answers=_answers(tmp_path / "a", samples), **faults))
    result = _run(app, samples, tmp_path / "j").result()
    assert (result.scored, result.failed) == (200, 0)
    assert set(app[STATS].requests.values()) == {1, 6}


def test_a_refused_sample_is_not_asked_again_at_the_end(tmp_path):
    samples = _samples(200)
    faults = {"failure_rate": 0.05, "failure_kind": "wrapped_400"}
    app = create_app(SimulatorConfig(answers=_answers(tmp_path / "a", samples), **faults))
    result = _run(app, samples, tmp_path / "j").result()
    assert 0 < result.failed < 30
    assert set(app[STATS].requests.values()) == {1}


A = answer("A")


def _broken(after, last):
    """Serve `after` requests and give all others the last reply."""
    return ScriptedServer([*[A] * after, last], paths=["/v1/completions"])


def test_an_endpoint_that_dies_in_the_middle_ends_the_run_and_keeps_what_was_had(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("serve_eval.client.attempts.outcome.BASE_S", 0.001)
    server = _broken(100, hang_up())
    with pytest.raises(
        EndpointError, match=r"stopped answering: 16 samples in a row.*the connection ended before"
    ):
        _run(server, _samples(2000), tmp_path / "j")
    records = [record for _, record in scan(tmp_path / "j")]
    had = {record.id for record in records if record.response is not None}
    withdrawn = {record.id for record in records if record.withdrawn is not None}
    with Journal(tmp_path / "j") as journal:
        kept = {record.id for record in journal.records() if record.response is not None}
    assert len(had) == 100
    assert kept == had - withdrawn
    assert len(server.asked) < 100 + 4 * (DEAD_AFTER + 16) + 16


def test_an_endpoint_that_refuses_everything_ends_the_run_with_the_one_cause(
    tmp_path,
):
    server = _broken(0, fail(403, "no quota"))
    with pytest.raises(
        EndpointError, match=r"refuses every request: 16 samples in a row failed.*no quota"
    ):
        _run(server, _samples(2000), tmp_path / "j")
    assert len(server.asked) < 2 * DEAD_AFTER + 16


def test_refusals_among_answers_end_the_run_once_they_are_more_than_is_allowed(
    tmp_path,
):
    server = _broken(95, fail(400, "too long"))
    with pytest.raises(
        EndpointError,
        match=r"22 of 117 samples failed, more than the allowed 10%.*of them with: .*too long",
    ):
        _run(server, _samples(500), tmp_path / "j", concurrency=1)
    assert len(server.asked) == 117
    server = _broken(95, fail(400, "too long"))
    result = _run(server, _samples(105), tmp_path / "j2", concurrency=1).result()
    assert (result.scored, result.failed) == (95, 10)


def test_refusals_that_come_back_before_the_first_answer_do_not_end_a_run(tmp_path):
    """Refuse prompts that are too long immediately.

    At 512 in flight the first answers take longer than that.
    """
    refused, answering = [0], asyncio.Event()

    def reply(request):
        if int(request.prompt.removeprefix("question ")) % 20 == 7:
            refused[0] += 1
            if refused[0] > DEAD_AFTER:
                answering.set()
            return fail(400, "too long")
        return when(answering, A)

    result = _run(ScriptedServer(reply), _samples(600), tmp_path / "j", concurrency=512).result()
    assert (result.scored, result.failed, refused[0]) == (570, 30, 30)


# -------------------------------------------------------------------------------------------------
# the engine


async def test_tasks_follow_each_other_without_an_idle_tail(tmp_path):
    """The next task starts while the last answers of one task are still in flight."""
    fifteen = asyncio.Event()

    def reply(request):
        if request.number == 15:
            fifteen.set()
        return when(fifteen, A) if request.prompt == "question 9" and request.number <= 15 else A

    said = []

    class Told:
        def begin(self, task, planned, had):
            said.append(("begin", task))

        def update(self, task, done, failed, value): ...

        def end(self, task):
            said.append(("end", task))

    server = ScriptedServer(reply)
    async with (
        server.serve() as url,
        Client(Endpoint(base_url=url), Limits(concurrency=4)) as client,
    ):
        with Journal(tmp_path / "a") as a, Journal(tmp_path / "b") as b:
            lanes = [
                Lane(n, ScoreAccumulator(_task(), _samples(10)), j, range(10))
                for n, j in (("one", a), ("two", b))
            ]
            await ask(LoadSession(client, order_seed=0), lanes, progress=Told())
            assert [lane.accumulator.scored for lane in lanes] == [10, 10]
    assert said == [
        ("begin", "one"),
        ("begin", "two"),
        ("end", "one"),
        ("end", "two"),
    ]


class _After:
    """An early stop that decides after `n` results of its task."""

    def __init__(self, n):
        self.left = n

    def restart(self):
        raise AssertionError("nothing was withdrawn")

    def look(self):
        self.left -= 1
        return self.left <= 0


async def test_a_lane_that_is_decided_gives_its_requests_up_and_the_next_begins_at_once(
    tmp_path,
):
    given_up = asyncio.Event()

    async def reply(request):
        if int(request.prompt.split()[1]) >= 20:
            try:
                await given_up.wait()  # hangs until its client disconnects
            finally:
                given_up.set()
        return A

    said = []

    class Told:
        def begin(self, task, planned, had):
            said.append(("begin", task))

        def update(self, task, done, failed, value):
            assert ("end", task) not in said

        def end(self, task):
            said.append(("end", task))

    limits = Limits(concurrency=8, max_attempts=1)
    async with (
        ScriptedServer(reply).serve() as url,
        Client(Endpoint(base_url=url), limits) as client,
    ):
        with Journal(tmp_path / "a") as a, Journal(tmp_path / "b") as b:
            first = Lane(
                "one", ScoreAccumulator(_task(), _samples(1000)), a, range(1000), _After(20)
            )
            lanes = [first, Lane("two", ScoreAccumulator(_task(), _samples(15)), b, range(15))]
            session = LoadSession(client, order_seed=0, budget=RunBudget(tokens=10**6))
            await asyncio.wait_for(
                ask(session, lanes, progress=Told(), watch=CircuitBreaker(answered=0)), 15
            )
            (one, two), load = lanes, session.load()
    assert one.accumulator.scored == 20
    assert (two.accumulator.scored, two.accumulator.failed) == (15, 0)
    assert load.cancelled == 7
    assert said == [("begin", "one"), ("end", "one"), ("begin", "two"), ("end", "two")]


def test_a_run_that_is_stopped_ends_the_progress_of_what_began_and_of_nothing_else(
    tmp_path,
):
    server = _broken(0, fail(403, "no quota"))
    shown = {}

    class Told:
        def begin(self, task, planned, had):
            shown[task] = "begun"

        def update(self, task, done, failed, value):
            assert shown[task] == "begun"

        def end(self, task):
            assert shown[task] == "begun"
            shown[task] = "ended"

    async def main():
        async with (
            server.serve() as url,
            Client(Endpoint(base_url=url), Limits(concurrency=4)) as client,
        ):
            with Journal(tmp_path / "a") as a, Journal(tmp_path / "b") as b:
                lanes = [
                    Lane(n, ScoreAccumulator(_task(), _samples(100)), j, range(100))
                    for n, j in (("one", a), ("two", b))
                ]
                await ask(
                    LoadSession(client, order_seed=0),
                    lanes,
                    progress=Told(),
                    watch=CircuitBreaker(answered=0),
                )

    with pytest.raises(EndpointError, match="no quota"):
        asyncio.run(main())
    assert shown == {"one": "ended"}


@pytest.mark.parametrize("number", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_ten_percent_random_faults_change_nothing(tmp_path, monkeypatch, number):
    monkeypatch.setattr("serve_eval.client.attempts.outcome.BASE_S", 0.001)
    samples = _samples(number)
    config = SimulatorConfig(answers=_answers(tmp_path / "a", samples))
    rng = random.Random(0)
    faulty = spent = 0
    faults = [
        json_reply({"detail": "Internal server error"}, 500),
        fail(429, headers={"Retry-After": "0"}),
        raw(b"LLM is unavailable.", 503, content_type="text/plain"),
        raw(b"<html>", content_type="text/html"),
        json_reply({"choices": []}),
        raw(b'{"choices": [{"text": " A'),
        answer(" A", finish="cancelled"),
        reset(),
    ]
    simulator = _Simulator(config)

    async def failing(request):
        nonlocal faulty, spent
        sound = await simulator.completions(request.http)
        if rng.random() < 0.10:
            faulty += 1
            fault = rng.choice(faults)
            spent += fault is faults[1]
            return fault
        return sound

    sound = _run(create_app(config), samples, tmp_path / "sound", concurrency=64)
    server = ScriptedServer(failing, routes={"/v1/models": hand_over(simulator.models)})
    accumulator, load = _session(server, samples, tmp_path / "faulty", concurrency=64)
    result = accumulator.result()
    assert 0 < result.repaired <= faulty
    assert replace(result, repaired=0, doubted_bounds=None) == sound.result()
    assert result.scored == number
    assert faulty > 0.09 * number
    traffic = accumulator.traffic
    withdrawn = sum(one.withdrawn is not None for _, one in scan(tmp_path / "faulty"))
    asked = simulator.stats.requests.total()
    assert traffic.attempts + withdrawn == asked == len(server.asked) == number + faulty + withdrawn
    # If a used connection was closed by the server, the next attempt does not count as a retry.
    again = sum(traffic.retries.values())
    # Neither does one that a spent quota refused while others were answered.
    assert load.retries <= again <= faulty
    assert again - load.retries <= traffic.retries["disconnected"] + spent


@pytest.mark.parametrize("outage_timeout_s", [0.0, 0.6])
async def test_a_run_at_whose_endpoint_nobody_listens_any_more_ends_and_sends_nothing_meanwhile(
    tmp_path, outage_timeout_s
):
    server = FaultyServer([act.sound])
    limits = Limits(concurrency=64, outage_timeout_s=outage_timeout_s)
    async with server, client_of(server, limits) as client:
        with Journal(tmp_path / "j") as journal:
            lane = Lane(
                "letters", ScoreAccumulator(_task(), _samples(100_000)), journal, range(100_000)
            )
            run = asyncio.create_task(
                ask(LoadSession(client, order_seed=0), [lane], watch=CircuitBreaker(answered=0))
            )
            await until(lambda: lane.left <= 99_900)
            server.stop_listening()
            server.shut_idle_connections()
            with pytest.raises(EndpointError, match="no server listens at"):
                await run
            assert not client.retries
    records = [record for _, record in scan(tmp_path / "j")]
    assert sum(record.response is not None for record in records) >= 100
    assert not any(record.failure for record in records)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_restart_in_a_run_costs_no_sample_and_no_retry(tmp_path, stream):
    """At 64 in flight, sixteen refused connections in a row failed at once and ended the run."""
    told = []
    limits = Limits(concurrency=64, max_attempts=1, retry_budget=0, stream=stream)
    server = FaultyServer([act.later(0.02, act.sound_stream if stream else act.sound)])
    async with server, client_of(server, limits) as client:
        client.liveness.notify = told.append
        with Journal(tmp_path / "j") as journal:
            lane = Lane("letters", ScoreAccumulator(_task(), _samples(600)), journal, range(600))
            session = LoadSession(client, order_seed=0)
            run = asyncio.create_task(ask(session, [lane], watch=CircuitBreaker(answered=0)))
            for left in (500, 250):
                await until(lambda left=left: lane.left <= left)
                server.stop_listening()
                server.shut_idle_connections()
                await until(lambda: client.liveness.closed)
                await server.listen()
                await until(lambda: not client.liveness.closed)
            await run
            assert (lane.accumulator.scored, lane.accumulator.failed) == (600, 0)
            assert session.load().retries == 0
    assert [line.partition(" listens")[0] for line in told] == ["no server", "a server"] * 2


async def test_who_gives_up_waiting_for_a_server_is_heard_at_once(tmp_path):
    server = FaultyServer([act.sound], listening=False)
    async with server, client_of(server) as client:
        with Journal(tmp_path / "j") as journal:
            lane = Lane("letters", ScoreAccumulator(_task(), _samples(200)), journal, range(200))
            run = asyncio.create_task(
                ask(LoadSession(client, order_seed=0), [lane], watch=CircuitBreaker(answered=0))
            )
            await until(lambda: client.liveness.closed)
            run.cancel()  # as SIGINT does
            with pytest.raises(asyncio.CancelledError):
                await run
            assert (lane.left, journal.empty) == (200, True)


def test_the_retry_budget_bounds_the_retries_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr("serve_eval.client.attempts.outcome.BASE_S", 0.001)
    samples = _samples(400)
    faults = {"failure_rate": 0.08, "failure_kind": "500"}
    app = create_app(SimulatorConfig(answers=_answers(tmp_path / "a", samples), **faults))
    accumulator, load = _session(app, samples, tmp_path / "j", retry_budget=10)
    assert load.retries == load.retry_budget == 10
    with Journal(tmp_path / "j") as journal:
        messages = [record.failure.message for record in journal.records() if record.failure]
    assert any("the retry budget is spent" in message for message in messages)
    assert 0 < accumulator.result().failed < 60


def test_starts_keep_to_the_rate_limit_retries_included(tmp_path):
    samples = _samples(60)
    faults = {"failure_rate": 0.05, "failure_kind": "429", "failures_per_prompt": 1}
    app = create_app(SimulatorConfig(answers=_answers(tmp_path / "a", samples), **faults))
    accumulator, load = _session(app, samples, tmp_path / "j", rate_limit=50.0)
    assert accumulator.scored == 60
    assert load.wall_s >= (accumulator.traffic.attempts - 1) / 50.0 - 0.02
    assert app[STATS].max_concurrent <= 4


def test_an_automatic_concurrency_finds_its_way_and_says_how(tmp_path):
    samples = _samples(3000)
    app = create_app(SimulatorConfig(answers=_answers(tmp_path / "a", samples), latency_s=0.1))
    accumulator, load = _session(app, samples, tmp_path / "j", concurrency="auto")
    assert (accumulator.scored, accumulator.failed) == (3000, 0)
    assert set(app[STATS].requests.values()) == {1}
    # The machine decides if the second step climbs or falls;
    # tests/evaluation/engine/test_concurrency.py tests the rule.
    assert load.steps[0].concurrency == 32
    assert len(load.steps) > 1
    assert START < load.max_in_flight <= max(step.concurrency for step in load.steps)


def test_what_is_had_is_forced_to_disk_within_a_second(tmp_path, monkeypatch):
    forced = []
    monkeypatch.setattr(
        "serve_eval.storage.journal.os.fsync",
        lambda fd: forced.append(os.fstat(fd).st_size),
    )
    samples = _samples(30)
    app = create_app(SimulatorConfig(answers=_answers(tmp_path / "a", samples), latency_s=0.8))
    _run(app, samples, tmp_path / "j", concurrency=15)
    assert len(forced) >= 2
    assert 0 < forced[0] < forced[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_the_loop_of_the_client_is_watched_and_the_mode_of_answering_changes_no_score(
    tmp_path, stream
):
    samples = _samples(300)
    app = create_app(SimulatorConfig(answers=_answers(tmp_path / "a", samples)))
    accumulator, load = _session(app, samples, tmp_path / "j", stream=stream)
    again = _run(
        create_app(SimulatorConfig(answers=tmp_path / "a")),
        samples,
        tmp_path / "k",
        stream=not stream,
    )
    assert accumulator.result() == again.result()
    assert bool(accumulator.traffic.ttft_s) is stream
    assert (load.finished, load.limits.stream) == (300, stream)
    assert load.loop_lag_s >= 0.0
