"""Test the requests of samples: their contents, their order, and asking again."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.client import Client
from serve_eval.evaluation.engine.lane import Lane, arrange, arrange_groups
from serve_eval.evaluation.engine.load_session import LoadSession
from serve_eval.evaluation.engine.runner import SHOWN_EVERY_S, ask
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.results.sample_table import Repeated
from serve_eval.plan.prepared_task import request_of
from serve_eval.protocol.sampling_fields import fingerprint, sample_key
from serve_eval.schema import (
    Dataset,
    Endpoint,
    Hypothesis,
    Limits,
    Message,
    Metric,
    Outcome,
    Override,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.storage.journal import Journal
from tests.evaluation.engine.test_runner import RIGHT, _samples, _task
from tests.scripted_server import ScriptedServer, answer

SAMPLING = SamplingParams(max_tokens=16, stop=("\n",))
SAMPLE = Sample(id="a", prompt="p", target="t")


def _load(roots, wanted):
    raise NotImplementedError


def _score(sample, response):
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
def test_a_sample_asks_as_its_task_but_for_what_it_says_itself(override, sampling, extra):
    request = request_of(TASK, replace(SAMPLE, override=override))
    assert (request.sample_id, request.prompt, request.sampling, request.extra) == (
        "a",
        "p",
        sampling,
        extra,
    )


def test_every_repeat_asks_as_its_sample():
    samples = Repeated([replace(SAMPLE, override=Override(max_tokens=5))], 2)
    assert [request_of(TASK, sample).sampling.max_tokens for sample in samples] == [5, 5]


def _print(sample):
    return fingerprint(TASK, Dataset(samples=[sample], files=(), total=1))["samples"]


def test_what_a_sample_asks_otherwise_is_in_the_fingerprint_and_in_its_key():
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


def test_samples_without_one_keep_the_fingerprint_that_they_had():
    known = "1 sha256:921bfdd886e75d4f7c246586d20e0b88b7ae5c5d4ad35a3ecf112c78549a245f"
    assert _print(SAMPLE) == known


def test_prompts_and_repeats_have_seeds_of_their_own_and_keep_them():
    task = replace(TASK, sampling=replace(SAMPLING, temperature=0.8, seed=7))
    names = ("a", "a#2", "a#3", "b", *(f"c{i}" for i in range(200)))
    seeds = [request_of(task, replace(SAMPLE, id=name)).sampling.seed for name in names]
    assert len({*seeds}) == len(names)
    assert seeds == [request_of(task, replace(SAMPLE, id=name)).sampling.seed for name in names]
    assert all(seed is not None and 0 <= seed < 2**31 for seed in seeds)
    other = replace(task, sampling=replace(SAMPLING, temperature=0.8, seed=8))
    assert request_of(other, SAMPLE).sampling.seed != seeds[0]


@pytest.mark.parametrize(("temperature", "seed"), [(0.0, 7), (0.8, None)])
def test_where_nothing_is_drawn_by_a_seed_it_is_sent_as_it_is(temperature, seed):
    task = replace(TASK, sampling=replace(SAMPLING, temperature=temperature, seed=seed))
    assert request_of(task, SAMPLE).sampling.seed == seed


ORDERS = ("natural", "random", "prefix", "longest")


def _samples_order(prompts, targets=None):
    targets = targets or ["A"] * len(prompts)
    return [
        Sample(id=str(i), prompt=p, target=t)
        for i, (p, t) in enumerate(zip(prompts, targets, strict=True))
    ]


@given(st.lists(st.text(max_size=3), max_size=20), st.sampled_from(ORDERS))
def test_every_order_asks_each_sample_once(prompts, order):
    samples = _samples_order(prompts)
    chosen = [i for i in range(len(samples)) if i % 3]
    assert sorted(arrange(samples, chosen, order, "s")) == chosen


def test_natural_is_the_protocols_own():
    assert list(arrange(_samples_order("cab"), [2, 0, 1], "natural", "s")) == [2, 0, 1]


def test_random_is_the_same_for_the_same_seed():
    samples = _samples_order([str(i) for i in range(100)])
    one, two, three = (
        list(arrange(samples, range(100), "random", seed)) for seed in ("0", "0", "1")
    )
    assert one == two != three
    assert one != sorted(one)


def test_samples_that_share_a_prefix_stand_together():
    prompts = ["law: q1", "art: q1", "law: q2", "art: q2"]
    assert [
        prompts[i] for i in arrange(_samples_order(prompts), range(4), "prefix", "s")
    ] == sorted(prompts)
    chats = [
        (Message(role="system", content=p[:3]), Message(role="user", content=p)) for p in prompts
    ]
    assert list(arrange(_samples_order(chats), range(4), "prefix", "s")) == [1, 3, 0, 2]


@pytest.mark.parametrize(
    ("targets", "first"), [(["a", "aaa", "aa"], [1, 2, 0]), (["b", "a", "c"], [0, 1, 2])]
)
def test_the_longest_expected_answer_comes_first(targets, first):
    assert list(arrange(_samples_order("xyz", targets), range(3), "longest", "s")) == first


def test_an_order_that_is_changed_is_nobody_elses():
    samples = _samples_order([str(i) for i in range(100)])
    one = arrange(samples, range(100), "random", "0")
    before = list(one)
    one.reverse()
    assert list(arrange(samples, range(100), "random", "0")) == before


@given(st.lists(st.integers(0, 5), max_size=30))
def test_groups_follow_each_other_whole_in_the_protocols_order(keys):
    order, sizes = arrange_groups(keys, "s")
    assert sorted(order) == list(range(len(keys)))
    place, seen = 0, []
    for size in sizes:
        group = list(order[place : place + size])
        assert group == [i for i, key in enumerate(keys) if key == keys[group[0]]]
        seen.append(keys[group[0]])
        place += size
    assert len(seen) == len(set(seen)) == len(set(keys))


def test_the_order_of_groups_is_drawn_by_the_seed():
    keys = [i // 3 for i in range(300)]
    one, two, three = (arrange_groups(keys, seed)[0] for seed in ("0", "0", "1"))
    assert one == two != three
    assert list(one) != sorted(one)


class _Prefix:
    """Stop once the first `enough` samples have a score without a gap."""

    def __init__(self, accumulator, enough):
        self._accumulator, self._enough = accumulator, enough

    def look(self):
        return all(self._accumulator.score(i) is not None for i in range(self._enough))

    def restart(self): ...


def _requests(
    folder,
    enough,
    total,
    withdrawn,
    *,
    early=True,
):
    """Return the number of requests of a lane, one at a time, until its early stop decides."""
    accumulator = ScoreAccumulator(_task(), _samples(total))
    stopping = _Prefix(accumulator, enough)
    with Journal(folder / "journal") as journal:
        lane = Lane("a", accumulator, journal, range(total), stopping if early else None)
        asked = 0
        while lane.left and not lane.decided:
            for i in lane.iterate_starts(None):
                accumulator.add(i, RIGHT)
                lane.left, lane.waiting, asked = lane.left - 1, lane.waiting - 1, asked + 1
                gone = withdrawn.get(asked, ())
                found = {f"s{one}": RIGHT for one in gone if accumulator.score(one) is not None}
                if found:
                    lane.forget(found)
                assert lane.waiting == lane.left, "no request is under way"
                if stopping.look():
                    lane.decided = True
            if not lane.decided:
                lane.refill(lane.list_missing())
        assert early is False or stopping.look()
        assert lane.waiting >= 0
    return asked


def test_one_withdrawn_answer_costs_an_early_stop_one_request(tmp_path):
    assert _requests(tmp_path, 20, 2000, {15: [3]}) == 21


@given(st.dictionaries(st.integers(1, 40), st.lists(st.integers(0, 30), max_size=5), max_size=6))
def test_withdrawals_cost_an_early_stop_what_was_withdrawn(tmp_path_factory, withdrawn):
    asked = _requests(tmp_path_factory.mktemp("lane"), 20, 500, withdrawn)
    assert asked <= 20 + sum(map(len, withdrawn.values()))


def test_without_an_early_stop_they_are_asked_at_the_end(tmp_path):
    assert _requests(tmp_path, 500, 500, {15: [3, 4]}, early=False) == 502


@pytest.mark.parametrize(
    ("enough", "early", "missing"),
    [(4, True, []), (5, True, [4, 6, 7]), (4, False, [4, 6, 7])],
)
def test_a_lane_that_is_decided_without_a_withdrawn_answer_asks_nothing_more(
    tmp_path, enough, early, missing
):
    accumulator = ScoreAccumulator(_task(), _samples(8))
    stopping = _Prefix(accumulator, enough) if early else None
    with Journal(tmp_path / "journal") as journal:
        lane = Lane("a", accumulator, journal, range(8), stopping)
        for i in range(6):
            accumulator.add(i, RIGHT)
        lane.forget({"s4": RIGHT})
        assert list(lane.list_missing()) == missing


MANY = 300


class _Made(Sequence[Sample]):
    """Samples that are made when they are looked up, which is counted."""

    def __init__(self):
        self.made = Counter()

    def __len__(self):
        return MANY

    def __getitem__(self, i):
        assert isinstance(i, int)
        self.made[i] += 1
        return Sample(id=f"s{i}", prompt=f"question {i}", target="A")


class _Updates:
    """Progress that keeps how many answers each update tells."""

    def __init__(self):
        self.done = []

    def begin(self, task, planned, had): ...

    def end(self, task): ...

    def update(self, task, done, failed, value):
        self.done.append(done)


def _ask(samples, folder, progress=None):
    accumulator = ScoreAccumulator(_task(), samples)

    async def main():
        async with (
            ScriptedServer([answer("A")]).serve() as url,
            Client(Endpoint(base_url=url), Limits(concurrency=8)) as client,
        ):
            with Journal(folder / "j") as journal:
                lane = Lane("letters", accumulator, journal, range(len(samples)))
                await ask(LoadSession(client, order_seed=0), [lane], progress=progress)

    asyncio.run(main())
    return accumulator


def test_each_sample_is_looked_up_once(tmp_path):
    samples = _Made()
    assert _ask(samples, tmp_path).scored == MANY
    assert samples.made == Counter(range(MANY))


def test_the_progress_is_updated_by_time_and_not_by_answers(tmp_path):
    shown, began = _Updates(), time.monotonic()
    _ask(_Made(), tmp_path, shown)
    most = 3 + (time.monotonic() - began) / SHOWN_EVERY_S
    assert SHOWN_EVERY_S >= 1 / 20
    assert len(shown.done) <= most
    assert shown.done[0] == 0
    assert shown.done[-1] == MANY
