"""Test that two runs stay in step, even if their plans or samples differ.

They never wait for each other without end. Time is simulated: if all wait, a test fails
immediately.

The comparison ends, and both sides ask the same samples at the same time.
"""

import asyncio
import math
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import EndpointError, NotComparableError, PlanError
from serve_eval.evaluation.engine.start_times import Lockstep
from serve_eval.schema import Limits, Plan, Spec
from serve_eval.storage.report_file import read_report
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from tests.clock import run_counted
from tests.scripted_server import ScriptedServer, after, answer, fail

PLACES = [(task, i) for task in ("one", "other") for i in range(8)]


async def _run(
    seat,
    places,
    workers,
    started,
    *,
    stops=math.inf,
    s=0.0,
):
    """Run requests that take `s` seconds.

    After `stops` requests it ends without asking the rest.
    """
    stream = iter(places)

    async def worker():
        for place in stream:
            await seat.meet(*place)
            if len(started) >= stops:
                return
            started.append(place)
            await asyncio.sleep(s)

    await seat.take(places)
    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(worker())
    await seat.leave()


def _both(
    lists,
    workers=(1, 1),
    stops=(math.inf, math.inf),
    s=(1.0, 1.0),
):
    """Return the places that each of two runs starts, in order."""
    started = [[], []]

    async def main():
        participants = Lockstep().participants
        runs = [
            _run(participants[i], lists[i], workers[i], started[i], stops=stops[i], s=s[i])
            for i in (0, 1)
        ]
        await asyncio.gather(*runs)

    run_counted(main())
    return started


def _some():
    return st.lists(st.sampled_from(PLACES), unique=True)


@given(
    st.tuples(_some(), _some()),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(0, 20), st.integers(0, 20)),
    st.tuples(st.sampled_from([0.0, 1.0, 2.5]), st.sampled_from([0.0, 1.0, 2.5])),
)
def test_both_come_to_their_end_in_whatever_order_and_however_much_each_asks(
    lists,
    workers,
    stops,
    s,
):
    started = _both(lists, workers, stops, s)
    for found, places, most in zip(started, lists, stops, strict=True):
        assert set(found) <= set(places)
        assert len(found) == min(len(places), most)


@given(
    st.lists(st.sampled_from(PLACES), unique=True),
    st.integers(1, 5),
    st.sampled_from([0.1, 1.0, 30.0]),
)
def test_none_is_ahead_by_more_than_its_workers(places, workers, slower):
    started = [[], []]
    ahead = []

    async def main():
        participants = Lockstep().participants

        async def look():
            while len(started[0]) + len(started[1]) < 2 * len(places):
                ahead.append(abs(len(started[0]) - len(started[1])))
                await asyncio.sleep(0.05)

        await asyncio.gather(
            _run(participants[0], places, workers, started[0], s=1.0),
            _run(participants[1], places, workers, started[1], s=slower),
            look(),
        )

    run_counted(main())
    assert max(ahead, default=0) <= workers
    assert sorted(started[0]) == sorted(started[1]) == sorted(places)


@pytest.mark.parametrize("workers", [(1, 1), (4, 4), (2, 7)])
def test_tasks_in_another_order_are_asked_all_the_same(workers):
    """`compare a.yaml b.yaml` never ended if the plans list the same tasks in another order."""
    other_way_round = [*PLACES[8:], *PLACES[:8]]
    assert list(map(sorted, _both([PLACES, other_way_round], workers))) == [PLACES, PLACES]


def test_an_early_stop_of_one_side_keeps_the_other_one_no_longer_than_it_goes_on():
    """The side skips the rest of a task and starts the next one.

    From then on it counts as past the skipped part.
    """
    started = [[], []]

    async def main():
        participants = Lockstep().participants

        async def stops_early():
            await participants[0].take(PLACES)
            for place in [*PLACES[:2], *PLACES[8:]]:
                await participants[0].meet(*place)
                started[0].append(place)
            await asyncio.Event().wait()  # it has not left

        first = asyncio.create_task(stops_early())
        await _run(participants[1], PLACES, 3, started[1])
        first.cancel()

    run_counted(main())
    assert started[0] == [*PLACES[:2], *PLACES[8:]]
    assert sorted(started[1]) == PLACES


@pytest.mark.parametrize("places", [[], [PLACES[1]]])
def test_a_run_that_has_nothing_to_ask_keeps_nobody(places):
    async def main():
        participants = Lockstep().participants
        await asyncio.gather(_run(participants[0], places, 2, []), participants[1].leave())

    run_counted(main())


def test_one_that_leaves_before_the_other_has_come_does_not_wait():
    async def main():
        participants = Lockstep().participants
        await participants[0].leave()
        await _run(participants[1], PLACES, 2, [])

    run_counted(main())


N, AT_ONCE = 12, 3
ALONE = CompareRules(rule=Spec(name="paired"), again=0)
TASKS = (Spec(name="gsm8k"), Spec(name="word_problems"))


@pytest.fixture(scope="module")
def plan(data_root):
    return Plan(
        model="m",
        launcher=Spec(name="external", options={"base_url": "http://127.0.0.1:1/v1"}),
        tasks=TASKS,
        dataset_roots=(str(data_root),),
        limit=N,
        limits=Limits(concurrency=AT_ONCE),
    )


class _Sides:
    """Two endpoints that answer everything with 1.

    `ahead` is the largest lead of one over the other.
    """

    def __init__(self):
        self.asked, self.ahead = [0, 0], 0

    def server(self, side, refuses_after=None):
        def reply(request):
            if request.max_tokens <= 2:  # sent before the run
                return answer("1", finish="length")
            self.asked[side] += 1
            self.ahead = max(self.ahead, abs(self.asked[0] - self.asked[1]))
            refuses = refuses_after is not None and self.asked[side] > refuses_after
            return after(0.002 * (1 + 3 * side), fail(403, "no quota") if refuses else answer("1"))

        return ScriptedServer(reply)


def _compare(
    a,
    b,
    out,
    *,
    refuses_after=None,
    lose=None,
    **rules,
):
    """Run the comparison.

    With `lose` it runs twice at the same endpoints, and the second run asks the lost samples again.
    """
    sides = _Sides()

    async def both():
        async with AsyncExitStack() as stack, asyncio.timeout(100):
            servers = sides.server(0), sides.server(1, refuses_after)
            urls = [await stack.enter_async_context(server.serve()) for server in servers]
            plans = [
                replace(plan, launcher=Spec(name="external", options={"base_url": url}))
                for plan, url in zip((a, b), urls, strict=True)
            ]
            chosen = replace(ALONE, **rules)
            found = await compare(
                CompareSide(plan=plans[0]), CompareSide(plan=plans[1]), chosen, out, environ={}
            )
            if lose is not None:
                lose()
                sides.asked = [0, 0]
                found = await compare(
                    CompareSide(plan=plans[0]), CompareSide(plan=plans[1]), chosen, out, environ={}
                )
            return found

    return asyncio.run(both()), sides


DIFFERENCES = {
    "tasks in another order": lambda plan: replace(plan, tasks=TASKS[::-1]),
    "samples in another order": lambda plan: replace(
        plan, limits=replace(plan.limits, order="longest")
    ),
    "another seed of the order": lambda plan: replace(
        plan, limits=replace(plan.limits, order_seed=5)
    ),
    "fewer in flight, fewer starts": lambda plan: replace(
        plan, limits=Limits(concurrency=1, rate_limit=5000.0)
    ),
    "repeats": lambda plan: replace(plan, repeats=2),
    "an early stop": lambda plan: replace(plan, early_stop=0.01),
    "everything": lambda plan: replace(
        plan, tasks=TASKS[::-1], repeats=3, limits=Limits(order="natural")
    ),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", DIFFERENCES)
def test_whatever_differs_of_the_plans_both_are_asked_the_same_in_step(
    plan, tmp_path, name, turned
):
    plans = plan, DIFFERENCES[name](plan)
    a, b = plans[::-1] if turned else plans
    found, sides = _compare(a, b, tmp_path / "out")
    assert {task.task for task in found.tasks} == {"gsm8k", "word_problems"}
    assert all(task.a.scored == task.b.scored == N * a.repeats for task in found.tasks)
    assert sides.asked == [2 * N * a.repeats] * 2
    at_once = a.limits.concurrency
    assert isinstance(at_once, int)
    assert sides.ahead <= 2 * at_once


def test_a_side_with_fewer_samples_is_refused_or_asked_what_it_has(plan, tmp_path):
    fewer = replace(plan, limit=N - 4)
    with pytest.raises(NotComparableError, match="samples is"):
        _compare(plan, fewer, tmp_path / "refused")
    for number, (a, b) in enumerate([(plan, fewer), (fewer, plan)]):
        found, sides = _compare(a, b, tmp_path / f"{number}", allow_mismatch=("samples", "data"))
        assert [(task.a.scored, task.b.scored) for task in found.tasks] == [(N - 4, N - 4)] * 2
        assert sides.asked == [2 * (a.limit or 0), 2 * (b.limit or 0)]


@pytest.mark.parametrize("only", ["A", "B"])
def test_a_task_of_one_side_only_is_refused(plan, tmp_path, only):
    plans = [plan, replace(plan, tasks=TASKS[:1])]
    with pytest.raises(NotComparableError, match=f"word_problems: only {only} has this task"):
        _compare(*(plans if only == "A" else plans[::-1]), tmp_path / "out")


def test_an_automatic_concurrency_is_refused(plan, tmp_path):
    automatic = replace(plan, limits=Limits(concurrency="auto"))
    with pytest.raises(PlanError, match="a comparison needs a fixed number"):
        _compare(automatic, plan, tmp_path / "out")
    _compare(plan, automatic, tmp_path / "out")  # B is limited by A


def test_sides_of_which_other_parts_are_answered_come_to_their_end(plan, tmp_path):
    out = tmp_path / "out"

    def lose():
        for side, kept in (("a", slice(0, 8)), ("b", slice(3, 5))):
            for journal in (out / side / "samples").glob("*.jsonl"):
                lines = journal.read_bytes().splitlines(keepends=True)
                journal.write_bytes(b"".join(lines[kept]))
            (out / side / "report.json").unlink()
        (out / "comparison.json").unlink()

    found, sides = _compare(plan, replace(plan, tasks=TASKS[::-1]), out, lose=lose)
    assert all(task.a.scored == task.b.scored == N for task in found.tasks)
    assert sides.asked == [2 * (N - 8), 2 * (N - 2)]


@pytest.mark.parametrize("after", [0, 5])
def test_a_side_that_fails_ends_both(plan, tmp_path, after):
    many = replace(plan, limit=100)
    with pytest.raises(EndpointError, match="403"):
        _compare(many, many, tmp_path / "out", refuses_after=after)
    assert not (tmp_path / "out" / "a" / "report.json").exists()


def test_the_order_of_the_tasks_is_that_of_a(plan, tmp_path):
    _compare(plan, replace(plan, tasks=TASKS[::-1]), tmp_path / "out")
    for side in ("a", "b"):
        assert [task.result.task for task in read_report(tmp_path / "out" / side).tasks] == [
            "gsm8k",
            "word_problems",
        ]
