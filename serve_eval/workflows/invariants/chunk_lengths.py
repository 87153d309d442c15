"""Find text lengths just below and just above the point where a server cuts long prompts.

The server itself counts the tokens, in short requests, since a client has no tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from serve_eval.client.client import Client
from serve_eval.plan.prepared_task import request_of
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Failure, Spec

TASK = "passkey_lines"
STEP = 4
"""Noise lines between two lengths: about 80 tokens, half of them below the boundary and half above
it. Texts of the same length differ by fewer tokens."""
SEED = 1
"""Seed of the texts that are counted. The texts of the arms have another seed, so that they are new
to the server."""


class _NotPlacedError(Exception):
    """No texts could be made, for the reason in the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Line counts of three texts, a step apart: two below the boundary and one above it.

    The prompt tokens are those that the server counted for the last two.
    """

    shorter: int
    below: int
    above: int
    below_tokens: int
    above_tokens: int


async def lengths(client: Client, boundary: int, *, chat: bool) -> Lengths | str:
    """Return texts around `boundary` prompt tokens, or the reason why there are none."""
    try:
        return await _lengths(client, boundary, chat=chat)
    except _NotPlacedError as error:
        return str(error)


async def _lengths(client: Client, boundary: int, *, chat: bool) -> Lengths:
    few, more = await _tokens(client, 10, chat=chat), await _tokens(client, 50, chat=chat)
    per_line = (more - few) / 40
    if per_line <= 0:
        raise _NotPlacedError("the server does not count prompt tokens")
    below = round((boundary - few) / per_line + 10 - STEP / 2)
    if below <= STEP:
        raise _NotPlacedError(f"{boundary} tokens are too few for texts that differ only in length")
    counted = [await _tokens(client, lines, chat=chat) for lines in (below, below + STEP)]
    if not counted[0] <= boundary < counted[1]:
        raise _NotPlacedError(
            f"texts of {counted[0]} and {counted[1]} tokens are not on both sides of {boundary}"
        )
    return Lengths(
        shorter=below - STEP,
        below=below,
        above=below + STEP,
        below_tokens=counted[0],
        above_tokens=counted[1],
    )


async def _tokens(client: Client, lines: int, *, chat: bool) -> int:
    """Return the prompt tokens that the server counts for a text of `lines` lines."""
    options = {"lines": lines, "random_seed": SEED, "apply_chat_template": chat}
    task = build_task(
        Spec(name=TASK, options={name: value for name, value in options.items() if value})
    )
    [sample] = task.load(DataRoots(), 1).samples
    result = await client.send(
        request_of(replace(task, sampling=replace(task.sampling, max_tokens=1)), sample)
    )
    if isinstance(result, Failure):
        raise _NotPlacedError(f"a text of {lines} lines was not answered: {result.message}")
    return result.usage.prompt_tokens
