"""Test the alarm during a run.

It is raised long before the end if an endpoint degrades, and never for a healthy endpoint whose
hard questions take longest.
"""

import asyncio
import re
import threading
from dataclasses import replace
from itertools import pairwise

import pytest

from serve_eval.evaluation import ask_tasks
from serve_eval.evaluation.ask_tasks import DegradationAlarm
from serve_eval.evaluation.engine import runner
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.results.degradation import VALUE, Lookout, degradations
from serve_eval.launchers._simulated.simulator import SimulatorConfig, _Simulator, create_app, serve
from serve_eval.launchers.simulated import probability
from serve_eval.protocol.shared import build_task
from serve_eval.report.document import make_page
from serve_eval.report.page.writer import render_page
from serve_eval.report.run.document import make_run_document
from serve_eval.schema import Attempt, Limits, Plan, Response, Sample, Spec
from serve_eval.storage.report_file import read_report
from serve_eval.verdicts.below_reference import RIGHT
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.references import register
from tests.scripted_server import ScriptedServer, after, hand_over

N = 300


@pytest.fixture(scope="module")
def plan(data_root):
    return Plan(
        model="simulated",
        launcher=Spec(name="external", options={"base_url": "http://127.0.0.1:1/v1"}),
        tasks=(Spec(name="gsm8k", options={"num_samples": N}),),
        dataset_roots=(str(data_root),),
        no_reference=True,
        # A fixed order: among random ones, one in a hundred may raise a false alarm, which is the
        # promised level.
        limits=Limits(concurrency=16, order_seed=1),
    )


@pytest.fixture(scope="module")
def config(plan, tmp_path_factory):
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    _write_answers(path, prepare(plan), probability(0.95, 0.0, 0))
    return SimulatorConfig(answers=path)


def _run(plan, config, behaviour, out, *, interrupted_at=0):
    """Return the report, and each message with the number of requests received by then.

    The run is interrupted at a request and resumed, unless the number is 0.
    """
    good, bad = _Simulator(config), _Simulator(replace(config, damage=1.0))
    lines, enough = [], asyncio.Event()

    async def reply(request):
        if request.number == interrupted_at:
            enough.set()
        known = await good.completions(request.http)
        wrong, seconds = behaviour(request.number, "I am not sure" not in known.text)
        return after(seconds, hand_over((bad if wrong else good).completions))

    server = ScriptedServer(reply, paths=["/v1/completions"])

    async def run():
        async with server.serve() as url:
            at = replace(plan, launcher=Spec(name="external", options={"base_url": url}))

            async def go():
                return await evaluate(
                    at, out, environ={}, notify=lambda line: lines.append((len(server.asked), line))
                )

            if interrupted_at:
                first = asyncio.create_task(go())
                await enough.wait()
                first.cancel()
                await asyncio.wait([first])
            return await go()

    return asyncio.run(run()), lines


def test_a_fall_is_told_while_the_run_goes_on_and_shown_on_the_page(
    plan, config, tmp_path, monkeypatch
):
    monkeypatch.setattr(runner, "LOOK_S", 0.01)
    report, lines = _run(
        plan,
        config,
        lambda number, known: (number > 100 and number % 2 == 0, 0.02),
        tmp_path / "out",
    )
    [(came, line)] = [(came, line) for came, line in lines if "bad scores" in line]
    found = re.search(
        r"gsm8k: degrading from request (\d+) on: .* bad scores before, .*; the run goes on", line
    )
    assert found is not None
    one = report.tasks[0].degradations[0]
    assert abs(int(found[1]) - 100) <= 10
    assert abs(one.since - 100) <= 10
    assert came < 250
    page = render_page(make_page(make_run_document(report, tmp_path / "out")))
    assert f">degrading from request {one.since} on (dashed" in page
    assert page.count("<polyline") == 2 * len(report.tasks[0].degradations)


def test_slow_wrong_answers_of_a_healthy_endpoint_are_no_reason_for_an_alarm(
    plan, config, tmp_path, monkeypatch
):
    monkeypatch.setattr(runner, "LOOK_S", 0.01)
    hard = replace(config, damage=0.4)
    report, lines = _run(
        plan, hard, lambda number, known: (False, 0.005 if known else 0.1), tmp_path / "out"
    )
    assert 30.0 < (report.tasks[0].result.value or 0.0) < 80.0
    assert report.tasks[0].degradations == ()
    assert [line for _, line in lines if "degrading" in line] == []
    assert "<polyline" not in render_page(make_page(make_run_document(report, tmp_path / "out")))


def test_long_answers_that_an_interruption_cut_off_are_no_reason_for_an_alarm(
    plan, config, tmp_path, monkeypatch
):
    """Samples in flight have long answers more often than others; all are sent again in a row."""
    monkeypatch.setattr(runner, "LOOK_S", 0.01)
    hard, many = replace(config, damage=0.3), replace(plan, limits=Limits(concurrency=48))
    pace = lambda number, known: (False, 0.002 if known else 0.3)  # noqa: E731
    report, lines = _run(many, hard, pace, tmp_path / "out", interrupted_at=150)
    assert report.tasks[0].result.scored == N
    assert report.tasks[0].degradations == ()
    assert [line for _, line in lines if "degrading" in line] == []


@pytest.fixture(scope="module")
def hard(plan, tmp_path_factory):
    """Configure an endpoint with 70 % right answers that varies on 3 % of the prompts."""
    path = tmp_path_factory.mktemp("hard") / "answers.jsonl"
    _write_answers(path, prepare(plan), probability(0.7, 0.03, 0))
    return SimulatorConfig(answers=path, varied=True)


def _falls(number, known):
    return number > 100 and number % 2 == 0, 0.01


def test_against_a_registered_reference_a_fall_is_told_on_the_way_and_in_the_report(
    plan, hard, tmp_path, monkeypatch
):
    """Let the score fall from 70 % to 35 %.

    The line names what was counted; the numbers cover all requests.
    """
    monkeypatch.setattr(runner, "LOOK_S", 0.01)
    for run in (1, 2):
        _run(plan, replace(hard, run=run), lambda number, known: (False, 0.0), tmp_path / str(run))
    register([tmp_path / "1", tmp_path / "2"], tmp_path / "refs")
    judged = replace(plan, no_reference=False, references_dir=str(tmp_path / "refs"))
    report, lines = _run(judged, replace(hard, run=3), _falls, tmp_path / "out")
    [line] = [line for _, line in lines if RIGHT in line]
    found = re.search(
        rf"degrading from request (\d+) on: .*% {RIGHT} before, .* of {N}, in the order", line
    )
    assert found is not None
    [one] = [one for one in report.tasks[0].degradations if one.measure == VALUE]
    assert one.counted == RIGHT
    assert one.before < 0.1 < 0.4 < one.after
    assert abs(one.since - 100) <= 20
    assert int(found[1]) == one.since
    assert any(f"{RIGHT} before" in warning for warning in report.tasks[0].verdict.warnings)
    assert RIGHT in render_page(make_page(make_run_document(report, tmp_path / "out")))
    sound, lines = _run(
        judged, replace(hard, run=4), lambda number, known: (False, 0.0), tmp_path / "sound"
    )
    assert (sound.tasks[0].degradations, [line for _, line in lines if "degrading" in line]) == (
        (),
        [],
    )


@pytest.mark.parametrize("finished", [True, False])
def test_a_finished_run_is_what_a_comparison_looks_at_the_other_side_against(
    plan, hard, tmp_path, finished
):
    """Two sides that run at the same time are judged by their own scores.

    Neither side is known in advance.
    """
    good, bad = _Simulator(replace(hard, run=1)), _Simulator(replace(hard, damage=1.0))

    def reply(request):
        return hand_over((bad if _falls(request.number, True)[0] else good).completions)

    server, first = ScriptedServer(reply, paths=["/v1/completions"]), tmp_path / "a"
    if finished:
        _run(plan, replace(hard, run=2), lambda number, known: (False, 0.0), first)

    async def go():
        async with server.serve() as url, serve(create_app(replace(hard, run=2))) as sound:
            at = {
                name: replace(plan, launcher=external(u)) for name, u in (("a", sound), ("b", url))
            }
            a = CompareSide(plan=at["a"], folder=first if finished else None)
            rules = CompareRules(rule=Spec(name="paired"), again=0)
            await compare(
                a, CompareSide(plan=at["b"]), rules, tmp_path / "out", environ={}, show_flips=0
            )

    asyncio.run(go())
    [one] = [
        one
        for one in read_report(tmp_path / "out" / "b").tasks[0].degradations
        if one.measure == VALUE
    ]
    assert one.counted == (RIGHT if finished else "")


def external(url):
    return Spec(name="external", options={"base_url": url})


def test_nothing_beyond_the_first_unfinished_sample_is_looked_at():
    task = build_task(Spec(name="gsm8k"))
    samples = [Sample(id=str(i), prompt="?", target="1") for i in range(200)]
    tally, lines = ScoreAccumulator(task, samples), []
    looking = DegradationAlarm(tally, range(200), lines.append)

    def answer(i, text):
        attempt = Attempt(start_s=i, end_s=i + 1, failure=None, status=200, request_id="r")
        tally.add(i, Response(text=text, finish_reason="stop", attempts=(attempt,)))

    def look():
        asyncio.run(looking.look())
        return lines

    for i in range(200):
        if i != 70:
            answer(i, "#### 1" if i < 90 else "#### 2")
    assert look() == []
    answer(70, "#### 1")
    [line] = look()
    assert line.startswith(
        "warning: gsm8k: degrading from request 91 on: 0.0% bad scores before, 100.0% from there"
    )
    assert look() == [line]


def _tally(n):
    return ScoreAccumulator(
        build_task(Spec(name="gsm8k")),
        [Sample(id=str(i), prompt="?", target="1") for i in range(n)],
    )


def _answer(tally, i, right):
    attempt = Attempt(start_s=i, end_s=i + 1, failure=None, status=200, request_id="r")
    tally.add(
        i, Response(text=f"#### {1 if right else 2}", finish_reason="stop", attempts=(attempt,))
    )


async def test_each_sample_is_taken_once_and_looks_are_rarer_where_there_are_thousands(
    monkeypatch,
):
    monkeypatch.setattr(ask_tasks, "LATER", 400)
    n, taken, ends = 1200, [], []

    class Counted(Lookout):
        def extend(self, part, known=frozenset()):
            taken.extend(part.places)
            ends.append(len(taken))
            return super().extend(part, known)

    monkeypatch.setattr(ask_tasks, "Lookout", Counted)
    tally = _tally(n)
    looking = DegradationAlarm(tally, range(n), [].append)
    for i in range(n):
        _answer(tally, i, i % 10 != 0)
        await looking.look()
    assert taken == list(range(ends[-1]))
    assert ends[0] == 50
    growths = [(later - end) / end for end, later in pairwise(ends)]
    assert all(
        0.02 <= growth < 0.04 for growth, end in zip(growths, ends, strict=False) if end < 400
    )
    assert all(
        0.1 <= growth < 0.11 for growth, end in zip(growths, ends, strict=False) if end >= 400
    )


async def test_the_loop_goes_on_while_a_look_lasts():
    came = threading.Event()

    class Slow(ScoreAccumulator):
        def course(self, planned):
            assert came.wait(10), "nothing else ran on the loop"
            return super().course(planned)

    task = build_task(Spec(name="gsm8k"))
    tally = Slow(task, [Sample(id=str(i), prompt="?", target="1") for i in range(60)])
    for i in range(60):
        _answer(tally, i, True)
    look = asyncio.create_task(DegradationAlarm(tally, range(60), [].append).look())
    await asyncio.sleep(0)
    came.set()
    await look


@pytest.mark.parametrize("meanwhile", [False, True])
def test_withdrawn_answers_are_forgotten_and_nothing_is_told_twice(meanwhile, monkeypatch):
    """Replace bad answers by good ones; then the run degrades anyway.

    With `meanwhile` a look had found the bad ones.
    """
    lines, bad, good = [], _tally(300), _tally(300)
    for i in range(200):
        _answer(bad, i, i < 100)
        _answer(good, i, True)
    looking = DegradationAlarm(bad, range(300), lines.append)
    found, withdrawn = threading.Event(), threading.Event()

    def slow(*given, **more):
        worse = degradations(*given, **more)
        found.set()
        withdrawn.wait(10)
        return worse

    monkeypatch.setattr(ask_tasks, "degradations", slow)

    async def run():
        if meanwhile:
            look = asyncio.create_task(looking.look())
            await asyncio.to_thread(found.wait, 10)
        for name in ("outcomes", "values", "lengths", "flags", "scored"):
            setattr(bad, name, getattr(good, name))
        looking.restart()
        withdrawn.set()
        if meanwhile:
            await look
        await looking.look()
        assert lines == []
        for i in range(200, 300):
            _answer(bad, i, False)
            await looking.look()
        looking.restart()
        await looking.look()

    asyncio.run(run())
    [line] = lines
    assert "degrading from request 201 on" in line


async def test_what_an_earlier_session_had_comes_first():
    task = build_task(Spec(name="gsm8k"))
    tally, lines = (
        ScoreAccumulator(task, [Sample(id=str(i), prompt="?", target="1") for i in range(120)]),
        [],
    )
    for i in range(120):
        attempt = Attempt(start_s=i, end_s=i + 1, failure=None, status=200, request_id="r")
        text = "#### 1" if i < 60 else "#### 2"
        tally.add(i, Response(text=text, finish_reason="stop", attempts=(attempt,)))
    await DegradationAlarm(tally, range(120), lines.append).look()
    assert ["from request 61 on" in line for line in lines] == [True]


def test_a_run_in_another_order_has_no_alarm(plan, config, tmp_path, monkeypatch):
    def refused(*_, **__):
        raise AssertionError

    monkeypatch.setattr("serve_eval.evaluation.ask_tasks.DegradationAlarm", refused)
    natural = replace(plan, limits=replace(plan.limits, order="natural"), limit=10)
    report, _ = _run(natural, config, lambda number, known: (False, 0.0), tmp_path / "out")
    assert report.tasks[0].result.scored == 10
