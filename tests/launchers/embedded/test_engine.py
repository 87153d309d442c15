"""Test continuous batching and the prefix cache of the embedded model."""

import asyncio
import math
from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import LaunchError
from serve_eval.launchers import embedded
from serve_eval.launchers._embedded.engine import (
    BLOCK,
    CHUNK,
    PER_TURN,
    ROWS,
    Engine,
    PrefixCache,
    PrefixCaching,
)
from serve_eval.launchers._embedded.generation import (
    Shaping,
    Wanted,
    draw_token,
    penalise,
)
from serve_eval.schema import LaunchContext
from tests.launchers.embedded import tiny
from tests.launchers.embedded.test_server import running

TENSORS = tiny.tensors(0)


def _ids(seed, count):
    return tuple(int(i) for i in np.random.default_rng(seed).integers(4, tiny.VOCABULARY, count))


@cache
def _greedy(ids, count):
    """Return the likeliest tokens one by one, each from a plain pass over all tokens before it."""
    found = ()
    while len(found) < count:
        found += (int(tiny.logits(TENSORS, ids + found)[-1].argmax()),)
    return found


def _run(engine, generations):
    for _ in range(2000):
        if all(one.over for one in generations):
            return
        engine.turn()
    raise AssertionError("it does not come to an end")


def _submit(engine, ids, **wanted):
    return engine.submit(
        Wanted(ids=ids, **{"max_tokens": 8, "ignore_end": True, **wanted}), asyncio.Event()
    )


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 5),
        st.sampled_from([1, 2, 9, 64, 65, 140]),
        st.integers(1, 6),
        st.booleans(),
    ),
    min_size=1,
    max_size=10,
)
"""Per sequence: turns until the next, seed, prompt tokens, wanted tokens, whether cancelled."""


@settings(max_examples=25)
@given(ARRIVALS)
def test_every_sequence_gets_what_a_plain_pass_gives_whatever_the_others(
    model, tokenizer, arrivals
):
    engine, kept = Engine(model, tokenizer), []
    for turns, seed, length, count, given_up in arrivals:
        one = _submit(engine, _ids(seed, length), max_tokens=count)
        for _ in range(turns):
            engine.turn()
        if given_up:
            one.cancelled = True
        else:
            kept.append((one, _ids(seed, length), count))
    _run(engine, [one for one, _, _ in kept])
    for one, ids, count in kept:
        assert tuple(token.id for token in one.tokens) == _greedy(ids, count)
        assert (one.finish_reason, one.steps) == ("length", count)


def test_more_sequences_than_rows_all_come_to_their_turn(model, tokenizer):
    engine = Engine(model, tokenizer)
    together = [
        _submit(engine, _ids(seed % 5, 9), max_tokens=1 + seed % 6) for seed in range(ROWS + 9)
    ]
    _run(engine, together)
    for seed, one in enumerate(together):
        assert tuple(token.id for token in one.tokens) == _greedy(_ids(seed % 5, 9), 1 + seed % 6)


def test_log_probabilities_are_the_same_whatever_the_batch_and_those_of_the_model(model, tokenizer):
    def told(others):
        engine = Engine(model, tokenizer)
        for seed in range(others):
            _submit(engine, _ids(seed, 30 + seed), max_tokens=20)
        one = _submit(engine, _ids(7, 70), logprobs=3, prompt_logprobs=2)
        _run(engine, [one])
        return one

    alone, among = told(0), told(13)
    whole = [*_ids(7, 70), *(token.id for token in alone.tokens)]
    logits = tiny.logits(TENSORS, whole)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert alone.prompt[0].logprob is None
    for place, token in enumerate([*alone.prompt, *alone.tokens][1:], 1):
        before = expected[place - 1]
        assert token.logprob == pytest.approx(before[token.id], abs=1e-3)
        assert token.rank == 1 + int((before > before[token.id]).sum())
        assert [one.logprob for one in token.top] == pytest.approx(
            sorted(before)[::-1][: len(token.top)], abs=1e-3
        )
    assert {len(token.top) for token in alone.prompt[1:]} == {2}
    assert {len(token.top) for token in alone.tokens} == {3}
    for mine, other in zip(
        [*alone.prompt, *alone.tokens][1:], [*among.prompt, *among.tokens][1:], strict=True
    ):
        assert (mine.id, mine.text) == (other.id, other.text)
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-5)


def test_a_long_prompt_does_not_hold_up_the_others(model, tokenizer):
    engine = Engine(model, tokenizer)
    speaking = _submit(engine, _ids(0, 5), max_tokens=100)
    engine.turn()
    long = _submit(engine, _ids(1, 4 * PER_TURN * CHUNK // 2 - 1), max_tokens=5)
    for turn in range(1, 3):
        before = speaking.steps
        engine.turn()
        assert speaking.steps == before + 1
        assert (long.steps > 0) == (turn == 2)


def test_nothing_is_wanted_of_a_prompt_but_its_own_log_probabilities(model, tokenizer):
    engine = Engine(model, tokenizer)
    one = _submit(engine, _ids(0, 70), max_tokens=0, prompt_logprobs=0)
    _run(engine, [one])
    assert (len(one.prompt), one.tokens, one.text, one.finish_reason) == (70, [], "", "length")


def test_the_end_token_ends_an_answer_unless_it_is_ignored(model, tokenizer, monkeypatch):
    whole = _greedy(_ids(0, 3), 6)
    monkeypatch.setattr(model, "end", whole[-1])
    at, engine = whole.index(whole[-1]), Engine(model, tokenizer)
    ended, ignored = (_submit(engine, _ids(0, 3), ignore_end=ignore) for ignore in (False, True))
    _run(engine, [ended, ignored])
    assert (ended.finish_reason, len(ended.tokens), ended.steps) == ("stop", at, at + 1)
    assert (ignored.finish_reason, len(ignored.tokens)) == ("length", 8)
    assert "".join(token.text for token in ended.tokens) == ended.text


# Stop strings


def _text(model, tokenizer, seed, **wanted):
    """Return a generation and the pieces in which it was reported."""
    engine = Engine(model, tokenizer)
    one, pieces = _submit(engine, _ids(seed, 6), max_tokens=40, **wanted), []
    while not one.over:
        engine.turn()
        pieces.append(one.news()[0])
    return one, pieces


@settings(max_examples=25)
@given(st.integers(0, 7), st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), max_size=3))
def test_a_text_ends_before_the_earliest_stop_string_and_no_piece_shows_any_of_it(
    model, tokenizer, seed, places
):
    whole, pieces = _text(model, tokenizer, seed)
    assert "".join(pieces) == whole.text
    assert "".join(token.text for token in whole.tokens) == whole.text
    stops = tuple(filter(None, (whole.text[at : at + size] for at, size in places)))
    cut, pieces = _text(model, tokenizer, seed, stop=stops)
    ends = sorted((end, stop) for stop in stops if (end := whole.text.find(stop)) >= 0)
    if not ends:
        assert (cut.text, cut.finish_reason, cut.stop_reason) == (whole.text, "length", None)
        return
    # The stop string that is complete first counts, even if another one began before it.
    assert cut.finish_reason == "stop"
    assert cut.stop_reason in stops
    assert whole.text.startswith(cut.text + cut.stop_reason)
    assert not any(stop in cut.text for stop in stops)
    assert "".join(pieces) == cut.text
    assert "".join(token.text for token in cut.tokens).startswith(cut.text)
    assert len("".join(token.text for token in cut.tokens[:-1])) <= len(cut.text)


# Chance


def test_the_same_seed_gives_the_same_whatever_the_batch_and_another_turn_another(model, tokenizer):
    def sampled(others, **wanted):
        engine = Engine(model, tokenizer)
        for seed in range(others):
            _submit(engine, _ids(seed, 12), shaping=Shaping())
        hot = Shaping(temperature=1.5)
        one = _submit(engine, _ids(9, 12), shaping=hot, max_tokens=20, **wanted)
        _run(engine, [one])
        return tuple(token.id for token in one.tokens)

    assert sampled(0, seed=4) == sampled(9, seed=4) == sampled(3, seed=4)
    assert len({sampled(0, seed=4), sampled(0, seed=5), sampled(0, seed=4, turn=1)}) == 3
    assert len({sampled(0) for _ in range(8)}) > 1  # without a seed, two may be alike by chance
    assert sampled(0, seed=-1) == sampled(2, seed=-1)


def test_tokens_are_drawn_as_often_as_their_probability_says():
    shares = np.array([0.5, 0.3, 0.15, 0.05])
    logits, count = np.log(shares).astype(np.float32), 4000
    chance = np.random.default_rng(0)

    def frequencies(**how):
        found = Counter(draw_token(logits, Shaping(**how), chance) for _ in range(count))
        return [found[i] / count for i in range(4)]

    def close(found, expected):
        return all(
            abs(f - e) <= 4 * math.sqrt(e * (1 - e) / count)
            for f, e in zip(found, expected, strict=True)
        )

    assert close(frequencies(), shares)
    assert close(frequencies(temperature=0.5), shares**2 / (shares**2).sum())
    assert close(frequencies(top_p=0.75), np.array([0.5, 0.3, 0, 0]) / 0.8)
    assert frequencies(top_p=0.0) == [1, 0, 0, 0]
    assert close(frequencies(top_k=2), np.array([0.5, 0.3, 0, 0]) / 0.8)
    assert close(frequencies(min_p=0.3), np.array([0.5, 0.3, 0.15, 0]) / 0.95)
    assert close(frequencies(min_p=0.3, top_k=2), np.array([0.5, 0.3, 0, 0]) / 0.8)
    assert frequencies(top_k=1) == frequencies(min_p=1.0) == [1, 0, 0, 0]
    assert draw_token(logits, Shaping(temperature=0.0), None) == 0


def test_penalties_lower_the_logits_of_tokens_that_came_before():
    logits = np.array([2.0, 1.0, -1.0, 0.5], dtype=np.float32)
    repeated = penalise(logits, Shaping(repetition_penalty=2.0), [0, 2], {1: 3})
    assert repeated.tolist() == [1.0, 0.5, -2.0, 0.5]
    assert penalise(logits, Shaping(frequency_penalty=0.5), [0], {1: 3}).tolist()[1] == -0.5
    assert penalise(logits, Shaping(presence_penalty=0.5), [0], {1: 3}).tolist()[1] == 0.5
    assert penalise(logits, Shaping(temperature=2.0), [0], {1: 3}) is logits


LENGTH = 3 * BLOCK
COUNT = 6


def _ask(engine, ids, salt="", **more):
    wanted = Wanted(ids=ids, max_tokens=COUNT, ignore_end=True, salt=salt, **more)
    one = engine.submit(wanted, asyncio.Event())
    _run(engine, [one])
    return one


def _said(one):
    return tuple(token.id for token in one.tokens)


@pytest.fixture
def engine(model, tokenizer):
    """Return an engine that keeps two prompts, and two more in host memory."""
    return Engine(model, tokenizer, PrefixCache(6, 6))


def test_a_cached_beginning_changes_no_answer_and_is_counted(engine):
    first, rest = _ids(1, LENGTH), _ids(2, 20)
    for ids, cached in (
        (first, 0),
        (first, LENGTH - BLOCK),  # the last token is computed
        (first + rest, LENGTH),
        (first[:BLOCK] + rest, BLOCK),
    ):
        one = _ask(engine, ids)
        assert (one.cached, _said(one)) == (cached, _greedy(ids, COUNT))
    salted = _ask(engine, first, salt="other")
    assert (salted.cached, _said(salted)) == (0, _greedy(first, COUNT))
    assert _ask(engine, first, salt="other").cached == LENGTH - BLOCK
    scored = _ask(engine, first, prompt_logprobs=0)
    assert (scored.cached, len(scored.prompt)) == (0, LENGTH)


def test_old_prompts_go_to_the_host_and_then_are_lost(engine):
    prompts = [_ids(seed, LENGTH) for seed in range(5)]
    for ids in prompts:
        assert _ask(engine, ids).cached == 0
    for ids, cached in ((prompts[1], LENGTH - BLOCK), (prompts[0], 0)):
        one = _ask(engine, ids)
        assert (one.cached, _said(one)) == (cached, _greedy(ids, COUNT))


@pytest.mark.parametrize(
    ("fault", "device", "host", "hurt", "sound"),
    [
        ("hits", 100, 0, (0, 1), ()),
        ("reload", 6, 100, (0,), (1,)),
        ("evicted", 6, 0, (0,), (1,)),
        ("none", 6, 100, (), (0, 1)),
    ],
)
def test_a_fault_strikes_only_the_prompts_that_it_concerns(
    model,
    tokenizer,
    fault,
    device,
    host,
    hurt,
    sound,
):
    """Prompt 0 left the device for prompts 1 and 2; the last one asked is still there."""
    prompts = [_ids(seed, LENGTH) for seed in range(3)]
    for number in (*hurt, *sound):
        engine = Engine(model, tokenizer, PrefixCaching(device, host, fault).build())
        for ids in prompts:
            assert _said(_ask(engine, ids)) == _greedy(ids, COUNT)
        one = _ask(engine, prompts[number])
        assert one.cached == LENGTH - BLOCK
        assert (_said(one) != _greedy(prompts[number], COUNT)) == (number in hurt)


def test_the_usage_has_cached_tokens_only_with_a_cache(folder):
    async def ask(blocks):
        async with running(folder, caching=PrefixCaching(blocks)) as peer:
            prompt = "Two and two, is it 4? " * 3
            found = []
            for salt in ("", "", "salt"):
                more = {"cache_salt": salt} if salt else {}
                _, body = await peer.ask(prompt=prompt, max_tokens=2, **more)
                found.append(body["usage"].get("prompt_tokens_details"))
            streamed = await peer.events(
                prompt=prompt, max_tokens=2, stream_options={"include_usage": True}
            )
            return [*found, streamed[-1]["usage"].get("prompt_tokens_details")]

    first, again, salted, streamed = asyncio.run(ask(100))
    assert (first, salted) == ({"cached_tokens": 0}, {"cached_tokens": 0})
    assert again == streamed
    assert again["cached_tokens"] >= BLOCK
    assert asyncio.run(ask(0)) == [None] * 4


def test_the_launcher_hands_the_cache_on(tmp_path):
    context = LaunchContext(model="m", log_dir=tmp_path)
    options = embedded.EmbeddedOptions(cache_blocks=9, host_blocks=4, cache_fault="reload")
    [command] = embedded.commands(context, options)
    at = command.index("--cache-blocks")
    assert command[at : at + 6] == [
        *("--cache-blocks", "9", "--host-blocks", "4", "--cache-fault", "reload")
    ]
    for wrong in ({"host_blocks": 4}, {"cache_fault": "hits"}, {"cache_blocks": -1}):
        with pytest.raises(LaunchError, match="need a prefix cache"):
            embedded.commands(context, embedded.EmbeddedOptions(**wrong))
