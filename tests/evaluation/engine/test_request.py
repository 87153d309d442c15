"""Test the request of a sample and its fingerprint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serve_eval.evaluation.results.sample_table import Repeated
from serve_eval.plan.prepared_task import request_of
from serve_eval.protocol.fingerprint import fingerprint, sample_key
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Metric,
    Outcome,
    Override,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)

SAMPLING = SamplingParams(max_tokens=16, stop=("\n",))
SAMPLE = Sample(id="a", prompt="p", target="t")


def _load(roots: DataRoots, wanted: int) -> Dataset:
    raise NotImplementedError


def _score(sample: Sample, response: Response) -> Score:
    return Score(value=0.0, outcome=Outcome.WRONG)


TASK = Task(
    name="t",
    version=1,
    reference_file="t",
    metric=Metric(),
    hypothesis=Hypothesis(),
    sampling=SAMPLING,
    extra={"truncate_prompt_tokens": 9, "top_k": 1},
    protocol={},
    load=_load,
    score=_score,
    answers=lambda sample: ("a", "b"),
)


@pytest.mark.parametrize(
    ("override", "sampling", "extra"),
    [
        (None, SAMPLING, {"truncate_prompt_tokens": 9, "top_k": 1}),
        (Override(), SAMPLING, {"truncate_prompt_tokens": 9, "top_k": 1}),
        (Override(max_tokens=512), SamplingParams(max_tokens=512, stop=("\n",)), TASK.extra),
        (Override(stop=()), SamplingParams(max_tokens=16), TASK.extra),
        (Override(stop=("a", "b")), SamplingParams(max_tokens=16, stop=("a", "b")), TASK.extra),
        (
            Override(extra={"top_k": 2, "response_format": {"type": "json"}}),
            SAMPLING,
            {"truncate_prompt_tokens": 9, "top_k": 2, "response_format": {"type": "json"}},
        ),
    ],
)
def test_a_sample_asks_as_its_task_but_for_what_it_says_itself(
    override: Override | None, sampling: SamplingParams, extra: dict[str, Any]
) -> None:
    request = request_of(TASK, replace(SAMPLE, override=override))
    assert (request.sample_id, request.prompt, request.sampling, request.extra) == (
        "a",
        "p",
        sampling,
        extra,
    )


def test_every_repeat_asks_as_its_sample() -> None:
    samples = Repeated([replace(SAMPLE, override=Override(max_tokens=5))], 2)
    assert [request_of(TASK, sample).sampling.max_tokens for sample in samples] == [5, 5]


def _print(sample: Sample) -> str:
    return fingerprint(TASK, Dataset(samples=[sample], files=(), total=1))["samples"]


def test_what_a_sample_asks_otherwise_is_in_the_fingerprint_and_in_its_key() -> None:
    overrides = [
        None,
        Override(max_tokens=5),
        Override(stop=("x",)),
        Override(extra={"a": 1, "b": 2}),
    ]
    samples = [replace(SAMPLE, override=override) for override in overrides]
    assert (
        len({_print(sample) for sample in samples})
        == len({sample_key(sample) for sample in samples})
        == 4
    )
    other_order = replace(SAMPLE, override=Override(extra={"b": 2, "a": 1}))
    assert _print(samples[-1]) == _print(other_order)


def test_samples_without_one_keep_the_fingerprint_that_they_had() -> None:
    known = "1 sha256:921bfdd886e75d4f7c246586d20e0b88b7ae5c5d4ad35a3ecf112c78549a245f"
    assert _print(SAMPLE) == known


def test_prompts_and_repeats_have_seeds_of_their_own_and_keep_them() -> None:
    task = replace(TASK, sampling=replace(SAMPLING, temperature=0.8, seed=7))
    names = ("a", "a#2", "a#3", "b", *(f"c{i}" for i in range(200)))
    seeds = [request_of(task, replace(SAMPLE, id=name)).sampling.seed for name in names]
    assert len({*seeds}) == len(names)
    assert seeds == [request_of(task, replace(SAMPLE, id=name)).sampling.seed for name in names]
    assert all(seed is not None and 0 <= seed < 2**31 for seed in seeds)
    other = replace(task, sampling=replace(SAMPLING, temperature=0.8, seed=8))
    assert request_of(other, SAMPLE).sampling.seed != seeds[0]


@pytest.mark.parametrize(("temperature", "seed"), [(0.0, 7), (0.8, None)])
def test_where_nothing_is_drawn_by_a_seed_it_is_sent_as_it_is(
    temperature: float, seed: int | None
) -> None:
    task = replace(TASK, sampling=replace(SAMPLING, temperature=temperature, seed=seed))
    assert request_of(task, SAMPLE).sampling.seed == seed
