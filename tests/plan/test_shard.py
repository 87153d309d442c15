"""Test how samples are split into shards, and how a shard is named."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import PlanError
from serve_eval.evaluation.engine.lane import arrange
from serve_eval.evaluation.results.sample_table import Repeated
from serve_eval.plan.chosen_samples import ShardPart, list_places, parse_shard, seed_of_group
from serve_eval.plan.plan_file import to_file
from serve_eval.plan.resolve import resolve
from serve_eval.schema import Limits, Plan, Sample, Shard, Spec


def _samples(ids: list[str]) -> list[Sample]:
    return [Sample(id=one, prompt=one, target="") for one in ids]


@given(st.lists(st.text(), unique=True, min_size=1, max_size=60), st.integers(1, 60), st.randoms())
def test_shards_are_a_partition_by_id_in_parts_of_equal_size(
    ids: list[str], count: int, rng: random.Random
) -> None:
    count = min(count, len(ids))
    samples = _samples(ids)
    parts = [list_places(samples, Shard(k, count)) for k in range(1, count + 1)]
    assert sorted(place for part in parts for place in part) == list(range(len(ids)))
    assert {len(part) for part in parts} <= {len(ids) // count, -(-len(ids) // count)}
    assert all(list(part) == sorted(part) for part in parts)
    shuffled = rng.sample(ids, len(ids))
    again = [list_places(_samples(shuffled), Shard(k, count)) for k in range(1, count + 1)]
    by_id = [{shuffled[place] for place in part} for part in again]
    assert by_id == [{ids[place] for place in part} for part in parts]


def test_a_shard_of_many_samples_does_not_depend_on_their_order() -> None:
    """Equal hashes would leave it to the order of the data."""
    ids = [f"test-{i}" for i in range(20_000)]
    first, last = (
        {order[place] for place in list_places(_samples(order), Shard(1, 3))}
        for order in (ids, ids[::-1])
    )
    assert first == last


def test_a_shard_is_not_a_stretch_of_the_data() -> None:
    places = list_places(_samples([f"test-{i}" for i in range(1000)]), Shard(1, 4))
    quarters = [
        sum(start <= place < start + 250 for place in places) for start in (0, 250, 500, 750)
    ]
    assert min(quarters) > 35


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 3), st.integers(0, 5))
def test_shards_start_their_samples_in_the_order_of_the_whole_run(
    n: int, count: int, repeats: int, seed: int
) -> None:
    count = min(count, n)
    samples = _samples([f"s{i}" for i in range(n)])
    whole = Repeated(samples, repeats)
    ids = [whole[i].id for i in arrange(whole, range(len(whole)), "random", str(seed))]
    for k in range(1, count + 1):
        places = list_places(samples, Shard(k, count))
        mine = Repeated([samples[i] for i in places], repeats)
        order = arrange(mine, range(len(mine)), "random", str(seed), ShardPart(places, n))
        own = {sample.id for sample in mine}
        assert [mine[i].id for i in order] == [one for one in ids if one in own]


@pytest.mark.parametrize(
    ("text", "environ", "shard"),
    [
        ("1/1", {}, Shard(1, 1)),
        ("3/16", {}, Shard(3, 16)),
        (" 16/16 ", {}, Shard(16, 16)),
        ("auto/4", {"SLURM_ARRAY_TASK_ID": "1"}, Shard(1, 4)),
        ("auto/4", {"SLURM_ARRAY_TASK_ID": "4", "SLURM_ARRAY_TASK_COUNT": "1"}, Shard(4, 4)),
        ("auto/4", {"JOB_COMPLETION_INDEX": "0"}, Shard(1, 4)),
        ("auto/4", {"JOB_COMPLETION_INDEX": "3"}, Shard(4, 4)),
        ("2/4", {"SLURM_ARRAY_TASK_ID": "1"}, Shard(2, 4)),
    ],
)
def test_a_shard_is_given_or_found(text: str, environ: Mapping[str, str], shard: Shard) -> None:
    assert parse_shard(text, environ) == shard


@pytest.mark.parametrize(
    ("text", "environ", "message"),
    [
        ("3", {}, "NUMBER/COUNT"),
        ("auto", {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "4"}, "auto/COUNT"),
        ("-1/4", {}, "NUMBER/COUNT"),
        ("0/4", {}, "from 1 to 4, not 0"),
        ("5/4", {}, "from 1 to 4, not 5"),
        ("1/0", {}, "count must be from 1"),
        ("auto/4", {}, "neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set"),
        ("auto/4", {"SLURM_ARRAY_TASK_ID": "0"}, "sbatch --array=1-4"),
        ("auto/4", {"SLURM_ARRAY_TASK_ID": "5"}, "must be from 1 to 4"),
        ("auto/4", {"JOB_COMPLETION_INDEX": "4"}, "must be from 0 to 3"),
        ("auto/4", {"JOB_COMPLETION_INDEX": "x"}, "must be from 0 to 3"),
        ("auto/4", {"JOB_COMPLETION_INDEX": "1", "SLURM_ARRAY_TASK_ID": "1"}, "both set"),
    ],
)
def test_what_is_no_shard_is_refused(text: str, environ: Mapping[str, str], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_shard(text, environ)
    assert message in str(caught.value)


def test_an_array_alone_shards_nothing() -> None:
    plan = resolve(
        {"tasks": ["gsm8k"]},
        {},
        {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "4", "JOB_COMPLETION_INDEX": "1"},
    ).plan
    assert plan.shard is None


def test_a_saved_plan_keeps_its_number() -> None:
    plan = resolve({"tasks": ["gsm8k"], "shard": "auto/4"}, {}, {"SLURM_ARRAY_TASK_ID": "2"}).plan
    assert plan.shard == Shard(2, 4)
    assert resolve(to_file(plan), {}, {"SLURM_ARRAY_TASK_ID": "3"}).plan.shard == Shard(2, 4)


def test_shards_of_one_array_have_one_order() -> None:
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=(), shard=Shard(1, 4))
    array = {"SLURM_ARRAY_JOB_ID": "77"}
    seeds = {seed_of_group(replace(plan, shard=Shard(k, 4)), array) for k in range(1, 5)}
    assert len(seeds) == 1
    assert None not in seeds
    assert seed_of_group(plan, {"SLURM_ARRAY_JOB_ID": "78"}) not in seeds
    assert seed_of_group(plan, {**array, "SERVE_EVAL_SHARD_GROUP": "x"}) not in seeds
    assert seed_of_group(plan, {}) is None
    assert seed_of_group(replace(plan, shard=None), array) is None
    given = replace(plan, limits=Limits(order_seed=5))
    assert seed_of_group(given, array) == 5
