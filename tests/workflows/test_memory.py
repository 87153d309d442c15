"""Stories about finished runs hold little of each answer: peaks of two sizes, in bytes a sample."""

import asyncio
import gc
import tracemalloc
from functools import partial

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import Plan, Shard, Spec
from serve_eval.workflows.compare.verdict import compare_folders
from serve_eval.workflows.diagnose.evidence import read
from serve_eval.workflows.export import export
from serve_eval.workflows.merge import merge, plan_of_whole, read_shards
from serve_eval.workflows.rescore import rescore

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("simulated_here")]

SMALL, LARGE = 500, 2500
ARMS = {
    "a": {},
    "b": {"damage": 0.1},
    "shard1": {"shard": Shard(1, 2)},
    "shard2": {"shard": Shard(2, 2)},
}


def _ask(folder, samples, *, damage=0.0, **more):
    options = {"accuracy": 0.8, "damage": damage}
    task = Spec(name="word_problems", options={"num_samples": samples})
    plan = Plan(
        model="m",
        launcher=Spec(name="simulated", options=options),
        tasks=(task,),
        no_reference=True,
        **more,
    )
    asyncio.run(evaluate(plan, folder, environ={}))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder for each size, with a run of each arm."""
    found = {size: tmp_path_factory.mktemp(str(size)) for size in (SMALL, LARGE)}
    for size, folder in found.items():
        for name, arm in ARMS.items():
            _ask(folder / name, size, **arm)
    return found


def _compare(runs, to):
    compare_folders(runs / "a", runs / "b", Spec(name="paired"), show_flips=5)


def _diagnose(runs, to):
    # The samples of both sides; the tests of slices have bounds of their own.
    both = [read(runs / side) for side in "ab"]
    assert both[0].tasks[0].lost


def _export(runs, to):
    export(runs / "a", to)


def _merge(runs, to):
    shards = read_shards([runs / "shard1", runs / "shard2"])
    merge(shards, plan_of_whole(shards), to)


def _rescore(runs, to):
    rescore(runs / "a")


def _peak(work):
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("story", "most"),
    [(_compare, 1600), (_diagnose, 2900), (_export, 2500), (_merge, 2600), (_rescore, 2200)],
)
def test_memory_grows_by_few_bytes_per_sample(story, most, runs, tmp_path):
    """The samples of the data set count too, about 900 bytes each."""
    story(runs[SMALL], tmp_path / "first")  # imports modules and fills caches
    small, large = (
        _peak(partial(story, runs[size], tmp_path / str(size))) for size in (SMALL, LARGE)
    )
    grown = (large - small) / (LARGE - SMALL)
    assert grown < most, f"{grown:.0f} bytes per sample"
