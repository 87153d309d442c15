"""Define the arms of the checks: passes over the same prompts, each under a harmless change.

The server itself counts the tokens, in short requests, since a client has no tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from serve_eval.client.client import Client
from serve_eval.frozen import freeze
from serve_eval.plan.prepared_task import PreparedTask, request_of
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Failure, Plan, Spec

TASK = "passkey_lines"
STEP = 4
"""Noise lines between two lengths: about 80 tokens, half of them below the boundary and half above
it. Texts of the same length differ by fewer tokens."""
SEED = 1
"""Seed of the texts that are counted. The texts of the arms have another seed, so that they are new
to the server."""


class _NotPlacedError(Exception):
    """No texts could be made, for the reason in the message."""


@freeze
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


BASE, AGAIN, COLD = "base", "again", "cold"
ALONE, ALONE_AGAIN = "alone", "alone_again"
COPIES = 8
"""Copies of each prompt that are sent in a row for the arm `repeated`."""
CHUNK_PROMPTS = 44
"""Number of texts for each of the three lengths around a boundary."""
CHAT_TOKENS = 256
"""Token limit of an answer to such a text in a chat, where a model may think first."""

Placed = Mapping[str, Lengths | str]
"""Per boundary in prompt tokens: the texts around it, or the reason why there are none."""


@freeze
class Arm:
    """A pass over the prompts under one change.

    `against` names the two passes that the arm is compared with, of which the second repeats the
    first; it is None for those passes themselves. `what` describes the difference from the first.
    `prepared` holds the tasks of the arm if they are prepared already.

    `exchangeable` is True if, on a sound server, the arm differs from the first pass only as its
    repeat does, to the last character. Different texts and score differences then count as well as
    changed answers. `pair` names the repeat of the arm. If it is set, the arm and its repeat are
    judged by whether the scores of `against` are lower or higher, and changed answers are only
    shown. `shift` is added to the seed of the order that all other arms share.
    """

    name: str
    what: str
    plan: Plan
    against: tuple[str, str] | None = (BASE, AGAIN)
    prepared: Sequence[PreparedTask] | None = None
    exchangeable: bool = False
    pair: str | None = None
    shift: int = 0


def arms_of(
    plan: Plan, prepared: Sequence[PreparedTask], tokenizer: str | None
) -> tuple[list[Arm], dict[str, str]]:
    """Return the ordered passes over the tasks' own prompts, and why others are left out."""
    arms, skipped = _usual_arms(plan, prepared), dict[str, str]()
    if plan.limits.concurrency != 1:
        arms += _arms_alone(plan, prepared)
    else:
        skipped[ALONE] = "the concurrency is already 1"
    if (why := _not_rendered(plan, prepared, tokenizer)) is not None:
        skipped["rendered"] = why
    else:
        tasks = tuple(
            Spec(name=s.name, options={**s.options, "tokenizer": tokenizer}) for s in plan.tasks
        )
        what = "with the chat template rendered by the client, against the server's own"
        arms.append(Arm(name="rendered", what=what, plan=replace(plan, tasks=tasks)))
    return arms, skipped


def _usual_arms(plan: Plan, prepared: Sequence[PreparedTask]) -> list[Arm]:
    """Return the passes that are always made."""
    limits = plan.limits
    in_a_row = replace(plan, repeats=COPIES, limits=replace(limits, order="prefix"))
    # The seed of a plan does not change the prompts, which are those of `prepared` in every arm.
    # `shuffled` has a seed of its own because it had one in older versions, where it set the order,
    # and their folders can be resumed only with the same seed.
    arms = [
        Arm(
            name=COLD,
            what="without cached data, against prompts in the prefix cache",
            plan=plan,
        ),
        Arm(name=BASE, what="", plan=plan, against=None),
        Arm(name=AGAIN, what="", plan=plan, against=None),
        Arm(
            name="shuffled",
            what="in another order, so that batches differ",
            plan=replace(plan, seed=plan.seed + 1, limits=replace(limits, order="random")),
            shift=1,
        ),
        Arm(
            name="streamed" if not limits.stream else "whole",
            what="as event streams" if not limits.stream else "not as event streams",
            plan=replace(plan, limits=replace(limits, stream=not limits.stream)),
            exchangeable=limits.concurrency == 1,
        ),
        Arm(
            name="repeated",
            what=(
                f"{COPIES} times in a row, so that copies share a batch: the last copy, against a"
                " single request"
            ),
            plan=in_a_row,
        ),
    ]
    return [replace(arm, prepared=prepared) for arm in arms]


def _arms_alone(plan: Plan, prepared: Sequence[PreparedTask]) -> list[Arm]:
    """Return the two passes that ask one prompt at a time."""
    one = replace(plan, limits=replace(plan.limits, concurrency=1))
    what = (
        f"one at a time, against {plan.limits.concurrency}: judged by scores, since batch size"
        " changes numerics"
    )
    return [
        Arm(name=ALONE, what=what, plan=one, prepared=prepared, pair=ALONE_AGAIN),
        Arm(name=ALONE_AGAIN, what="", plan=one, against=None, prepared=prepared),
    ]


def _not_rendered(
    plan: Plan, prepared: Sequence[PreparedTask], tokenizer: str | None
) -> str | None:
    """Return why the client cannot render the chat template; None if it can."""
    if not all(p.chat for p in prepared):
        return "not every task is asked by chat"
    if any(p.conversations for p in prepared):
        return "the server renders conversations, which grow by its answers"
    if any("tokenizer" in spec.options for spec in plan.tasks):
        return "the client renders the template already"
    return "invariants.tokenizer names no chat template" if tokenizer is None else None


def chunk_arms(plan: Plan, placed: Placed, *, chat: bool) -> list[Arm]:
    """Return arms with texts just below and just above each chunk boundary.

    The texts above are compared with those just below, and these with texts that are shorter by the
    same length. The two comparisons differ only in the boundary.

    The texts are sent one at a time, because in a batch the server also cuts prompts that would fit
    on their own.
    """
    arms = []
    asked = min(plan.limit or CHUNK_PROMPTS, CHUNK_PROMPTS)
    for size, found in placed.items():
        if isinstance(found, str):
            continue
        name = f"chunked_{size}"
        what = (
            f"texts of {found.above_tokens} tokens, against {found.below_tokens}: on either side of"
            f" {size}"
        )
        for arm, lines, against in (
            (f"{name}_below", found.below, None),
            (f"{name}_shorter", found.shorter, None),
            (name, found.above, (f"{name}_below", f"{name}_shorter")),
        ):
            options: dict[str, Any] = {"lines": lines, "num_samples": asked}
            if chat:
                options |= {"apply_chat_template": True, "max_tokens": CHAT_TOKENS}
            task = Spec(name=TASK, options=options)
            own = replace(
                plan, tasks=(task,), limit=None, limits=replace(plan.limits, concurrency=1)
            )
            arms.append(Arm(name=arm, what=what, plan=own, against=against))
    return arms
