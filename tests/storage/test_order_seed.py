"""Test the random order of a run, which is drawn for it and kept.

Two nights have two orders; a resumed run has one.
"""

import asyncio
import json
import random
from array import array
from dataclasses import replace

import pytest

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.engine.lane import arrange, task_seed
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.results.degradation import Course, degradations
from serve_eval.launchers._simulated.simulator import SimulatorConfig, _Simulator, create_app, serve
from serve_eval.schema import Limits, Metric, Plan, Spec
from serve_eval.storage import order_seed, run_folder
from serve_eval.storage.file_names import ORDER_FILE
from serve_eval.storage.report_file import read_report
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.invariants.check import check
from serve_eval.workflows.rescore import rescore
from tests.scripted_server import ScriptedServer, hand_over

N = 60


@pytest.fixture(scope="module")
def plan(data_root):
    """Return a plan with one request at a time.

    The journal then has the samples in the order of their starts.
    """
    return Plan(
        model="simulated",
        launcher=Spec(name="external", options={"base_url": "http://127.0.0.1:1/v1"}),
        tasks=(Spec(name="gsm8k"),),
        dataset_roots=(str(data_root),),
        limit=N,
        no_reference=True,
        limits=Limits(concurrency=1),
    )


@pytest.fixture(scope="module")
def config(plan, tmp_path_factory):
    return _config(plan, tmp_path_factory.mktemp("answers"), lambda sample: 1.0)


def _config(plan, folder, chance):
    _write_answers(folder / "answers.jsonl", prepare(plan), lambda task, sample: chance(sample))
    return SimulatorConfig(answers=folder / "answers.jsonl")


def _run(plan, config, out, *, stop_at=0, rerun="failed"):
    """Return the report, or None for a run that was interrupted at a request."""
    simulator, running = _Simulator(config), None

    def reply(request):
        if request.number == stop_at:
            running.cancel()
        return hand_over(simulator.completions)

    async def run():
        nonlocal running
        async with ScriptedServer(reply, paths=["/v1/completions"]).serve() as url:
            at = replace(plan, launcher=Spec(name="external", options={"base_url": url}))
            moved = run_folder.holds_run(out)
            running = asyncio.create_task(evaluate(at, out, environ={}, moved=moved, rerun=rerun))
            await asyncio.wait([running])
            return None if running.cancelled() else running.result()

    return asyncio.run(run())


def _whole(report):
    assert report is not None
    return report


def _asked(out, since=0):
    """Return the ids in the order of their first answers.

    A session after a kill asks again what was not proven.
    """
    lines = (out / "samples/gsm8k.jsonl").read_text().splitlines()
    return list(dict.fromkeys(json.loads(line)["id"] for line in lines))[since:]


def _of_seed(plan, seed, but=()):
    """Return the ids in the random order of a seed."""
    samples = prepare(plan)[0].dataset.samples
    ids = [
        samples[i].id
        for i in arrange(samples, range(len(samples)), "random", task_seed(seed, "gsm8k"))
    ]
    return [name for name in ids if name not in set(but)]


def _seed(folder):
    """Return the seed that a folder of this version keeps."""
    stored = json.loads((folder / ORDER_FILE).read_text())
    assert stored.keys() == {"order_seed"}
    return stored["order_seed"]


def test_two_runs_of_one_plan_have_two_orders(plan, config, tmp_path):
    reports = [_whole(_run(plan, config, tmp_path / night)) for night in ("one", "two")]
    seeds = [_seed(tmp_path / night) for night in ("one", "two")]
    assert len({plan.seed, *seeds}) == 3
    assert [_asked(tmp_path / night) for night in ("one", "two")] == [
        _of_seed(plan, seed) for seed in seeds
    ]
    assert [report.loads[-1].order_seed for report in reports] == seeds
    assert reports[0].tasks[0].fingerprint == reports[1].tasks[0].fingerprint


def test_a_run_that_goes_on_keeps_its_order(plan, config, tmp_path):
    out = tmp_path / "out"
    assert _run(plan, config, out, stop_at=25) is None
    seed, had = _seed(out), len(_asked(out))
    assert 0 < had < N
    report = _whole(_run(plan, config, out))
    assert _seed(out) == seed
    assert _asked(out) == _of_seed(plan, seed)
    assert [load.order_seed for load in report.loads] == [seed, seed]


def test_what_is_asked_all_over_again_has_a_new_order(plan, config, tmp_path):
    out = tmp_path / "out"
    seeds = []
    for rerun in ("failed", "all"):
        _run(plan, config, out, rerun=rerun)
        seeds.append(_seed(out))
        assert _asked(out) == _of_seed(plan, seeds[-1])
    assert len(set(seeds)) == 2


def test_a_plan_may_give_the_seed_which_binds_nothing(plan, config, tmp_path):
    out = tmp_path / "out"
    given = replace(plan, limits=replace(plan.limits, order_seed=5))
    assert _run(given, config, out, stop_at=25) is None
    other = replace(plan, limits=replace(plan.limits, order_seed=6))
    report = _whole(_run(other, config, out))
    assert (_seed(out), _asked(out)) == (5, _of_seed(plan, 5))
    assert [
        line for line in report.warnings if "order_seed 6 is ignored" in line and "seed 5" in line
    ]
    assert not [line for line in _whole(_run(given, config, out)).warnings if "order_seed" in line]


# ---------------------------------------------------------------------------------------------
# folders of old versions


def test_a_folder_is_judged_and_scored_again_in_the_order_in_which_it_was_asked(plan, tmp_path):
    """The run degraded in this order, but not in the order of another seed."""
    late = set(_of_seed(plan, plan.seed)[N // 2 :])
    config = _config(plan, tmp_path, lambda sample: float(sample not in late))
    out = tmp_path / "out"
    given = replace(plan, limits=replace(plan.limits, order_seed=plan.seed))
    report = _whole(_run(given, config, out))
    (worse,) = (one for one in report.tasks[0].degradations if one.measure == "value")
    assert worse.since == N // 2 + 1
    saved = run_folder.read_plan(out)
    assert judge_again(saved, out).tasks[0].degradations == report.tasks[0].degradations
    rescore(out, to=tmp_path / "scored")
    assert read_report(tmp_path / "scored").tasks[0].degradations == report.tasks[0].degradations
    (out / ORDER_FILE).write_text('{"order_seed": 1}')
    assert not [
        one for one in judge_again(saved, out).tasks[0].degradations if one.measure == "value"
    ]
    (out / ORDER_FILE).unlink()
    assert not [
        one for one in judge_again(saved, out).tasks[0].degradations if one.measure == "value"
    ]


@pytest.mark.parametrize("text", ["{", "{}", '{"order_seed": "x"}', "[]"])
def test_a_damaged_file_is_named(plan, tmp_path, text):
    (tmp_path / ORDER_FILE).write_text(text)
    with pytest.raises(RunFolderError, match=r"order\.json"):
        order_seed.read_seeds(tmp_path, plan)


# --------------------------------------------------------------------------------------------------------  # noqa: E501
# false alarms


def test_what_alarmed_by_chance_in_one_night_does_not_in_the_next(plan, tmp_path, monkeypatch):
    """Run an endpoint that answers the same every night.

    In the first night the hard prompts are at the end by chance.
    """
    drawn = iter([11, 12])
    monkeypatch.setattr(order_seed.secrets, "randbits", lambda bits: next(drawn))
    hard = set(_of_seed(plan, 11)[N // 2 :])
    config = _config(plan, tmp_path, lambda sample: float(sample not in hard))
    nights = [_whole(_run(plan, config, tmp_path / str(seed))) for seed in (11, 12)]
    assert nights[0].tasks[0].result.value == nights[1].tasks[0].result.value == 50.0
    assert [[one.measure for one in night.tasks[0].degradations] for night in nights] == [
        ["value"],
        [],
    ]


def test_of_many_orders_of_the_same_outcomes_one_in_a_hundred_alarms():
    n, orders = 200, 400
    right = [1.0] * 140 + [0.0] * 60
    alarms = 0
    for seed in range(orders):
        values = array("d", random.Random(f"{seed}").sample(right, n))
        times, lengths = array("d", range(n)), array("i", [5] * n)
        course = Course(
            started_s=times,
            ended_s=times,
            values=values,
            lengths=lengths,
            empty=bytes(n),
            repetitive=bytes(n),
        )
        alarms += bool(degradations(course, Metric(), n))
    assert alarms <= 0.01 * orders


# ------------------------------------------------------------------------------------------ runs
# that belong together


def _compare(plan, config, out):
    async def both():
        async with (
            asyncio.timeout(60),
            serve(create_app(config)) as a,
            serve(create_app(config)) as b,
        ):
            sides = [
                CompareSide(
                    plan=replace(plan, launcher=Spec(name="external", options={"base_url": u}))
                )
                for u in (a, b)
            ]
            return await compare(
                *sides,
                CompareRules(rule=Spec(name="paired"), again=20),
                out,
                environ={},
                show_flips=0,
            )

    return asyncio.run(both())


def test_both_sides_of_a_comparison_have_one_order_and_the_next_comparison_another(
    plan, config, tmp_path
):
    seeds = []
    for name in ("one", "two"):
        out = tmp_path / name
        _compare(plan, config, out)
        seeds.append(_seed(out))
        assert [_seed(out / side) for side in ("a", "b", "again")] == [
            seeds[-1],
            seeds[-1],
            seeds[-1] + 1,
        ]
        assert _asked(out / "a") == _asked(out / "b") == _of_seed(plan, seeds[-1])
        assert "order" not in (out / "compare.json").read_text()
    assert len({plan.seed, *seeds}) == 3


def test_a_finished_side_stays_as_it_is(plan, config, tmp_path):
    done, out = tmp_path / "done", tmp_path / "out"
    _run(plan, config, done)
    before = {file.name: file.read_bytes() for file in done.iterdir() if file.is_file()}

    async def other():
        async with serve(create_app(config)) as url:
            live = CompareSide(
                plan=replace(plan, launcher=Spec(name="external", options={"base_url": url}))
            )
            finished = CompareSide(plan=run_folder.read_plan(done), folder=done)
            await compare(
                finished,
                live,
                CompareRules(rule=Spec(name="paired"), again=0),
                out,
                environ={},
                show_flips=0,
            )

    asyncio.run(other())
    assert {file.name: file.read_bytes() for file in done.iterdir() if file.is_file()} == before
    assert _seed(out / "b") == _seed(out) != _seed(done)


async def test_all_arms_of_the_invariants_have_one_order_but_the_shuffled_one(
    plan, config, tmp_path
):
    async with serve(create_app(config)) as url:
        at = replace(plan, limit=8, launcher=Spec(name="external", options={"base_url": url}))
        for _ in range(2):
            await check(at, tmp_path / "out", environ={}, chunk_tokens=(512,))
    out = tmp_path / "out"
    seed = _seed(out)
    arms = {folder.parent.name: _seed(folder.parent) for folder in out.glob(f"*/{ORDER_FILE}")}
    assert arms.pop("shuffled") == seed + 1
    assert {"base", "again", "cold", "repeated", "streamed"} <= arms.keys()
    assert set(arms.values()) == {seed}
    assert seed != plan.seed
    orders = {arm: tuple(_asked(out / arm)) for arm in ("cold", "base", "again", "shuffled")}
    assert len(set(orders.values())) == 2
    assert orders["base"] == orders["again"] == orders["cold"]
