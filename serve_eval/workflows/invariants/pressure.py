"""Ask the prompts again after other prompts have filled the cache of the server.

Caches were seen to return other or torn blocks after an eviction, or after an offload to host
memory and back (TensorRT-LLM issue 8813, LMCache 4385, sglang 22716, vLLM 52617). The size of a
cache is not known from outside. So the fillings double until fewer tokens of the old prompts come
from the cache; all old prompts are asked after each. A server that says how much its cache holds
gets one filling.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.questions.engine_metrics import VLLM_ROUTE
from serve_eval.client.questions.self_description import VLLM
from serve_eval.evidence.agreement import answer_pairs
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import Plan, Usage
from serve_eval.storage.reports.invariants_files import (
    PressureLevel,
    PressureLog,
    read_pressure,
    write_pressure,
)
from serve_eval.storage.reports.report_file import has_report, read_report
from serve_eval.workflows.invariants.arms import AGAIN, Arm
from serve_eval.workflows.invariants.cache_use import read_usage
from serve_eval.workflows.invariants.filling import fill
from serve_eval.workflows.invariants.pressure_use import are_fewer
from serve_eval.workflows.invariants.salting import may_be_salted

PRESSURE = "pressure"
FIRST = 2
"""The first filling, in multiples of the tokens of the old prompts."""
LEAST = 512
"""Tokens of the smallest first filling."""
ROOM = 1.25
"""A filling of this many times the size of the cache leaves no old prompt in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressing:
    """A pass under pressure: its folder, its plan and tasks, and the most tokens of fillings."""

    out_dir: Path
    plan: Plan
    prepared: Sequence[PreparedTask]
    budget: int

    @property
    def asked(self) -> list[PreparedTask]:
        """The tasks whose answers are generated: servers score texts without the cache."""
        return [p for p in self.prepared if may_be_salted(p)]

    def list_arms(self) -> list[Arm]:
        """Return the passes of the fillings so far."""
        names = {p.task.name for p in self.asked}
        plan = replace(
            self.plan, tasks=tuple(spec for spec in self.plan.tasks if spec.name in names)
        )
        return [
            Arm(
                name=level.name,
                what=f"after {level.filled:,} tokens of other prompts went through the cache",
                plan=plan,
                prepared=self.asked,
            )
            for level in read_pressure(self.out_dir).levels
        ]

    def is_ended(self) -> bool:
        """Return True if nothing is left to ask."""
        log = read_pressure(self.out_dir)
        return not self.budget or log.ended or bool(log.skipped)

    def why_skipped(self) -> dict[str, str]:
        """Return why there is no such pass."""
        why = read_pressure(self.out_dir).skipped
        return {PRESSURE: why} if self.budget and why else {}


async def press(pressing: Pressing, client: Client, ask: Callable[[Arm], Awaitable[None]]) -> None:
    """Fill the cache and ask the prompts, until they were evicted or the budget is spent.

    An interrupted pass begins with a filling again, since the server may have been restarted.
    """
    log, before = read_pressure(pressing.out_dir), _read(pressing, AGAIN)
    counted = any(one.cached_tokens is not None for one in before.values())
    if why := _why_not(pressing, before, counted=counted):
        write_pressure(pressing.out_dir, PressureLog(skipped=why))
        return
    if not log.levels and read_report(pressing.out_dir / AGAIN).endpoint.info.server == VLLM:
        reading = await client.read_engine(VLLM_ROUTE)
        log = PressureLog(capacity=None if reading is None else reading.cache_tokens)
    while not log.ended:
        undone = [one for one in log.levels if not has_report(pressing.out_dir / one.name)]
        tokens = sum(one.prompt_tokens for one in before.values())
        wanted = undone[0].wanted if undone else _choose(log, tokens, pressing.budget, counted)
        log = await _fill(pressing, client, log, wanted)
        level = next(one for one in log.levels if one.wanted == wanted)
        await ask(next(arm for arm in pressing.list_arms() if arm.name == level.name))
        fewer = counted and are_fewer(before, _read(pressing, level.name))
        room = log.capacity is not None and level.filled >= log.capacity
        spent = not _choose(log, tokens, pressing.budget, counted)
        log = msgspec.structs.replace(log, ended=fewer or room or spent)
        write_pressure(pressing.out_dir, log)


async def _fill(pressing: Pressing, client: Client, log: PressureLog, wanted: int) -> PressureLog:
    """Fill the cache; return the log with this filling, which a repeated one replaces."""
    seed, limits = secrets.randbits(48), pressing.plan.limits
    assert limits.concurrency != "auto"
    chat = pressing.asked[0].chat
    filled = await fill(client, wanted, limits.concurrency, seed, chat=chat)
    level = PressureLevel(wanted=wanted, filled=filled, seed=seed)
    others = [one for one in log.levels if one.wanted != wanted]
    log = msgspec.structs.replace(log, levels=(*others, level))
    write_pressure(pressing.out_dir, log)
    return log


def _choose(log: PressureLog, tokens: int, budget: int, counted: bool) -> int:
    """Return the tokens of the next filling; 0 if there is none.

    If the server does not report cached tokens, one filling takes them all.
    """
    left = budget - sum(one.wanted for one in log.levels)
    if log.levels and (log.capacity is not None or not counted):
        return 0
    if not counted:
        return left
    if log.capacity is not None:
        return min(left, round(ROOM * log.capacity))
    last = max((one.wanted for one in log.levels), default=0)
    wanted = 2 * last if last else max(LEAST, FIRST * tokens)
    if left >= wanted:
        return wanted
    return left if left > ROOM * last else 0


def _why_not(pressing: Pressing, before: Mapping[str, Usage], *, counted: bool) -> str:
    """Return why the pass is left out, or an empty text."""
    if not pressing.asked:
        return "servers compute log-probabilities of a prompt without the cache"
    if not before:
        return "no prompt was answered before"
    if counted and not any(one.cached_tokens for one in before.values()):
        return "nothing is cached: a prompt asked again had 0 cached tokens"
    return ""


def _read(pressing: Pressing, name: str) -> dict[str, Usage]:
    """Return the token counts of a pass, by task and prompt."""
    folder = pressing.out_dir / name
    report = read_report(folder)
    return {
        f"{p.task.name} {prompt}": usage
        for p in pressing.asked
        for prompt, usage in read_usage(answer_pairs.read_task(folder, report, p.task.name)).items()
    }
