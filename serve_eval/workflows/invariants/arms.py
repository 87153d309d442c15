"""The arms of the checks: passes over the same prompts, each under a change that should change
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.schema import Plan, Spec
from serve_eval.workflows.invariants.chunk_lengths import TASK as CHUNK_TASK
from serve_eval.workflows.invariants.chunk_lengths import Lengths

BASE, AGAIN, COLD = "base", "again", "cold"
ALONE, ALONE_AGAIN = "alone", "alone_again"
COPIES = 8
"""How often each prompt is asked in a row for the arm `repeated`."""
CHUNK_PROMPTS = 44
"""Texts of each of the three lengths around a boundary."""
CHAT_TOKENS = 256
"""Most tokens of an answer to such a text by chat, where a model may think first."""

Placed = Mapping[str, Lengths | str]
"""By boundary, in prompt tokens: the texts around it, or why there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A pass over the prompts: what is otherwise than in the first of the two passes `against`,
    whose second one is that again. None: it is only there to be compared with. `prepared` are its
    tasks where they are prepared already.

    `exchangeable`: on a sound server it may take the place of the second of `against` to the last
    character, so texts and distances of scores count too. `pair` is the arm once more, where both
    passes together are judged by whether the scores of `against` are lower or higher; changed
    answers are then only shown. `shift` is added to the seed of the order that the others share.
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
    """Return the passes over the tasks' own prompts in their order, and why others are left out."""
    arms, skipped = _usual_arms(plan, prepared), dict[str, str]()
    if plan.limits.concurrency != 1:
        arms += _arms_alone(plan, prepared)
    else:
        skipped[ALONE] = "the concurrency is 1 already"
    if (why := _not_rendered(plan, prepared, tokenizer)) is not None:
        skipped["rendered"] = why
    else:
        tasks = tuple(
            Spec(name=s.name, options={**s.options, "tokenizer": tokenizer}) for s in plan.tasks
        )
        what = "by the chat template rendered here, against the server's own"
        arms.append(Arm(name="rendered", what=what, plan=replace(plan, tasks=tasks)))
    return arms, skipped


def _usual_arms(plan: Plan, prepared: Sequence[PreparedTask]) -> list[Arm]:
    """Return the passes that every check has."""
    limits = plan.limits
    in_a_row = replace(plan, repeats=COPIES, limits=replace(limits, order="prefix"))
    # `prepared` has the prompts, which are the same in every arm, whatever the plan's seed. Folders
    # of older versions are bound to that of `shuffled`, and took its order from it.
    arms = [
        Arm(
            name=COLD,
            what="asked for the first time, against what stands in the prefix cache",
            plan=plan,
        ),
        Arm(name=BASE, what="", plan=plan, against=None),
        Arm(name=AGAIN, what="", plan=plan, against=None),
        Arm(
            name="shuffled",
            what="in another order, so that others share a batch",
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
                " single one"
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
    """Return why chats cannot be rendered here and compared with the server's; None where they
    can.
    """
    if not all(p.chat for p in prepared):
        return "not every task is asked by chat"
    if any("tokenizer" in spec.options for spec in plan.tasks):
        return "the template is rendered on our side already"
    return "--tokenizer names no chat template" if tokenizer is None else None


def chunk_arms(plan: Plan, placed: Placed, *, chat: bool) -> list[Arm]:
    """Texts just before and just beyond each boundary. Those beyond are compared with those just
    before it, and these with texts that are as much shorter: what a few lines more do is the same
    for both but for the boundary.

    One at a time: in a batch, prompts that would each fit are cut as well.
    """
    arms = []
    asked = min(plan.limit or CHUNK_PROMPTS, CHUNK_PROMPTS)
    for size, found in placed.items():
        if isinstance(found, str):
            continue
        name = f"chunked_{size}"
        what = (
            f"texts of {found.above_tokens} tokens, against {found.below_tokens}: on both sides of"
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
            task = Spec(name=CHUNK_TASK, options=options)
            own = replace(
                plan, tasks=(task,), limit=None, limits=replace(plan.limits, concurrency=1)
            )
            arms.append(Arm(name=arm, what=what, plan=own, against=against))
    return arms
