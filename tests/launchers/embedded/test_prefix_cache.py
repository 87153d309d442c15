"""The prefix cache of the embedded model: its counts, its limits, its salt and its faults."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import LaunchError
from serve_eval.launchers import embedded
from serve_eval.launchers._embedded.engine import BLOCK, Engine, PrefixCache, PrefixCaching
from serve_eval.launchers._embedded.generation import Generation, Wanted
from serve_eval.launchers._embedded.model import Model
from serve_eval.launchers._embedded.tokenizer import Tokenizer
from serve_eval.schema import LaunchContext
from tests.launchers.embedded.test_engine import _greedy, _ids, _run
from tests.launchers.embedded.test_server import running

LENGTH = 3 * BLOCK
COUNT = 6


def _ask(engine: Engine, ids: tuple[int, ...], salt: str = "", **more: Any) -> Generation:
    wanted = Wanted(ids=ids, max_tokens=COUNT, ignore_end=True, salt=salt, **more)
    one = engine.submit(wanted, asyncio.Event())
    _run(engine, [one])
    return one


def _said(one: Generation) -> tuple[int, ...]:
    return tuple(token.id for token in one.tokens)


@pytest.fixture
def engine(model: Model, tokenizer: Tokenizer) -> Engine:
    """Return an engine that keeps two prompts, and two more in host memory."""
    return Engine(model, tokenizer, PrefixCache(6, 6))


def test_a_cached_beginning_changes_no_answer_and_is_counted(engine: Engine) -> None:
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


def test_old_prompts_go_to_the_host_and_then_are_lost(engine: Engine) -> None:
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
    model: Model,
    tokenizer: Tokenizer,
    fault: Any,
    device: int,
    host: int,
    hurt: tuple[int, ...],
    sound: tuple[int, ...],
) -> None:
    """Prompt 0 left the device for prompts 1 and 2; the last one asked is still there."""
    prompts = [_ids(seed, LENGTH) for seed in range(3)]
    for number in (*hurt, *sound):
        engine = Engine(model, tokenizer, PrefixCaching(device, host, fault).build())
        for ids in prompts:
            assert _said(_ask(engine, ids)) == _greedy(ids, COUNT)
        one = _ask(engine, prompts[number])
        assert one.cached == LENGTH - BLOCK
        assert (_said(one) != _greedy(prompts[number], COUNT)) == (number in hurt)


def test_the_usage_has_cached_tokens_only_with_a_cache(folder: Path) -> None:
    async def ask(blocks: int) -> list[Any]:
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


def test_the_launcher_hands_the_cache_on(tmp_path: Path) -> None:
    context = LaunchContext(model="m", log_dir=tmp_path)
    options = embedded.EmbeddedOptions(cache_blocks=9, host_blocks=4, cache_fault="reload")
    [command] = embedded.commands(context, options)
    at = command.index("--cache-blocks")
    assert command[at : at + 6] == [
        *("--cache-blocks", "9", "--host-blocks", "4", "--cache-fault", "reload")
    ]
    for wrong in ({"host_blocks": 4}, {"cache_fault": "hits"}, {"cache_blocks": -1}):
        with pytest.raises(LaunchError, match="need a prefix cache"):
            embedded.commands(context, embedded.EmbeddedOptions(**wrong))  # type: ignore[arg-type]
