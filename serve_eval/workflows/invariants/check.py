"""Check one endpoint without expected answers: send prompts under changes that must not matter.

Three passes come first. `cold` gives each prompt a cache_salt of its own if the server takes one,
so that nothing comes from the prefix cache; else it is cold only on a server that was just started.
`base` and `again` find the prompts in the cache, if there is one. Their difference is the
endpoint's own nondeterminism. An arm that changes the answers of more prompts is broken, on the
assumption that the arm and `again` can be exchanged: on a sound server, either is as likely to
differ from `base`. Whether `cold` was cold, and `base` was not, is in the server's counts of cached
tokens (`cache_use`); without that, equal answers are no result. There are four kinds of arms.

* `cold`, `shuffled`, `repeated`, `rendered` and the chunks change how a sound server computes
  (parts of a prompt from the cache or not, other batches, other chunks of a prompt) or where
  thoughts and tool calls are removed from the text. The last bits of the numbers change, and with
  them many texts, although nothing is wrong. So only answers count: few of them depend on the last
  bits. The same holds for `streamed` (or `whole`), since the speed of reading answers decides
  which requests share a batch.
* The passes under pressure (`pressure`) come last and are judged in the same way: other prompts
  have filled the cache, so that the old ones were evicted or offloaded.
* If requests are sent one at a time, the computation does not depend on how `streamed` (or
  `whole`) sends an answer back. The arm and `again` can then be exchanged to the last character,
  so texts and score differences count too.
* `alone` changes the batch size of every prompt, while it is the same in `base` and `again`.
  Numerics that depend on it change the same answers each time, so the passes cannot be exchanged
  and changed answers prove nothing. But different numerics correct a wrong answer as often as they
  spoil a right one. So the arm is broken if the scores of `base` and `again` together are lower,
  or higher, than those of `alone` and `alone_again` in more prompts than in the other direction.

The prompts of a task do not have the lengths that the arms about chunks of long prompts need, so
these arms use generated prompts, see `chunk_lengths`. OUT/<arm> are ordinary run folders and
OUT/invariants.json is the result. All arms but `shuffled` use one random order, whose seed is in
OUT/order.json.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from serve_eval.client.connection import connect
from serve_eval.errors import PlanError
from serve_eval.evaluation.deployment import chunk_sizes
from serve_eval.evaluation.launch import launch
from serve_eval.evaluation.passes import (
    PassSettings,
    ask_pass,
    check_same_passes,
    prepare_passes,
    settle_order,
)
from serve_eval.evaluation.run_session import Stopwatch, ignore
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import Endpoint, Invariants, Plan, Progress
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import SERVERS
from serve_eval.storage.report_file import has_report, read_report
from serve_eval.storage.story_files import INVARIANTS
from serve_eval.storage.story_results import find_chunks, find_salt, write_chunks
from serve_eval.workflows.invariants.arms import (
    COLD,
    Arm,
    Lengths,
    Placed,
    arms_of,
    chunk_arms,
    lengths,
)
from serve_eval.workflows.invariants.caching import (
    Pressing,
    add_salt,
    fill_cache,
    press,
    settle_salt,
    why_unsalted,
)
from serve_eval.workflows.invariants.document import ALPHA, judge_arms

__all__ = ["ALPHA", "CHUNKS", "check"]

LIMIT = 100
"""Default number of prompts per task. Every arm asks all of them, two arms one at a time."""
CHUNKS = (2048, 8192)
"""Default chunk boundaries in prompt tokens: the usual one of vLLM, and trtllm-serve's
max_num_tokens."""


@with_scope
async def check(
    plan: Plan,
    out_dir: Path,
    *,
    tokenizer: str | None = None,
    chunk_tokens: Sequence[int] = CHUNKS,
    kv_pressure: int = 0,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
    notify: Callable[[str], None] = ignore,
) -> Invariants:
    """Ask the prompts in every arm, one after the other, and report which changes changed answers.

    `tokenizer` is the folder of a chat template, with which the client also renders chats and sends
    them as text. `chunk_tokens` are the lengths at which the server may cut long prompts into
    chunks, and `kv_pressure` the most tokens of other prompts that may be sent to fill its cache.
    Finished passes in the folder are not repeated. Raises ServeEvalError for what stops a run.
    """
    clock = Stopwatch()
    plan, prepared = await _prepare(plan, out_dir, environ)
    session = _CheckSession(
        plan=plan,
        prepared=prepared,
        shared=PassSettings(
            command=INVARIANTS.command,
            out_dir=out_dir,
            progress=progress,
            environ=environ,
            notify=notify,
        ),
        chunk_tokens=chunk_tokens,
        pressing=Pressing(out_dir=out_dir, plan=plan, prepared=prepared, budget=kv_pressure),
    )
    session.arms, skipped = arms_of(plan, prepared, tokenizer)
    with run_folder.hold(out_dir, INVARIANTS.plan, "such checks"):
        bind_folder(out_dir, plan)
        INVARIANTS.drop(out_dir)
        logs = out_dir / SERVERS
        logs.mkdir(mode=0o700, exist_ok=True)
        session.open()
        if session.has_more():
            async with launch(plan, prepared, logs, notify=notify) as endpoint:
                await _ask_arms(session, endpoint)
        skipped |= session.boundaries_left_out() | session.pressing.why_skipped()
        unsalted = why_unsalted(prepared, find_salt(out_dir))
        found = judge_arms(out_dir, plan, session.every_arm(), skipped, unsalted)
        found = replace(found, started_at=clock.started_at, wall_s=clock.wall_s)
        INVARIANTS.write(out_dir, found)
    return found


async def _prepare(
    plan: Plan, out_dir: Path, environ: Mapping[str, str]
) -> tuple[Plan, Sequence[PreparedTask]]:
    """Return the plan that the arms vary, and its tasks."""
    if plan.limits.concurrency == "auto":
        raise PlanError(
            "concurrency: these checks need a fixed number", hint="Such as --concurrency 64."
        )
    return await prepare_passes(plan, out_dir, out_dir / COLD, environ, LIMIT)


@dataclass(slots=True, kw_only=True)
class _CheckSession:
    """The shared state of the checks.

    `arms` are those over the tasks' own prompts. The arms around chunk boundaries are known once
    there are `texts` for them. `seed` is that of the order that arms share.
    """

    plan: Plan
    prepared: Sequence[PreparedTask]
    shared: PassSettings
    chunk_tokens: Sequence[int]
    pressing: Pressing
    arms: list[Arm] = field(default_factory=list)
    texts: dict[str, Lengths | str] = field(default_factory=dict)
    seed: int = 0

    def open(self) -> None:
        """Read the settings of earlier sessions."""
        self.texts = read_texts(self.out_dir)
        self.seed = settle_order(self.out_dir, self.plan, self.shared.notify)

    @property
    def out_dir(self) -> Path:
        return self.shared.out_dir

    @property
    def chat(self) -> bool:
        """True if every task is asked by chat."""
        return all(p.chat for p in self.prepared)

    def boundaries(self) -> list[str]:
        """Return the chunk boundaries that are known so far."""
        return chunk_boundaries(self.out_dir, self.chunk_tokens)

    def boundaries_without_texts(self) -> list[str]:
        """Return the boundaries that still lack texts."""
        return [size for size in self.boundaries() if size not in self.texts]

    def boundaries_left_out(self) -> dict[str, str]:
        """Return the reasons why arms around a boundary are left out."""
        return {
            f"chunked_{size}": why
            for size in self.boundaries()
            if isinstance(why := self.texts[size], str)
        }

    def every_arm(self) -> list[Arm]:
        """Return all arms that are known so far."""
        placed = {size: self.texts[size] for size in self.boundaries() if size in self.texts}
        chunks = chunk_arms(self.plan, placed, chat=self.chat)
        return [*self.arms, *chunks, *self.pressing.list_arms()]

    def has_more(self) -> bool:
        """Return True if anything is left to ask."""
        left = self.list_pending() or self.boundaries_without_texts()
        return bool(left) or not self.pressing.is_ended()

    def list_pending(self, *, pressed: bool = True) -> list[Arm]:
        """Return the arms that are not finished; without those after a filling on demand."""
        left = [arm for arm in self.every_arm() if not has_report(self.out_dir / arm.name)]
        after = {arm.name for arm in self.pressing.list_arms()}
        return [arm for arm in left if pressed or arm.name not in after]


async def _ask_arms(session: _CheckSession, endpoint: Endpoint) -> None:
    """Ask every unfinished arm; the first ones show at which lengths the server cuts prompts."""
    await _ask_cold(session, endpoint)
    for arm in session.list_pending(pressed=False):
        await _ask_arm(session, arm, endpoint)
    if new := session.boundaries_without_texts():
        async with connect(session.plan, endpoint, session.shared.environ) as client:
            found = {size: await lengths(client, int(size), chat=session.chat) for size in new}
        session.texts |= found
        write_texts(session.out_dir, session.texts)
    for arm in session.list_pending(pressed=False):
        await _ask_arm(session, arm, endpoint)
    if not session.pressing.is_ended():
        async with connect(session.plan, endpoint, session.shared.environ) as client:
            await press(session.pressing, client, lambda arm: _ask_arm(session, arm, endpoint))


async def _ask_cold(session: _CheckSession, endpoint: Endpoint) -> None:
    """Ask the first arm if it is unfinished, and fill the cache for those after it.

    Without a salt, the first arm fills it, unless an earlier session asked it: the server may have
    been restarted since.
    """
    if not (pending := [arm for arm in session.list_pending() if arm.prepared is not None]):
        return
    first = pending[0] if pending[0].name == COLD else None
    async with connect(session.plan, endpoint, session.shared.environ) as client:
        if first is not None:
            begun = run_folder.has_answers(session.out_dir / COLD)
            salt = await settle_salt(session.out_dir, client, session.prepared, begun=begun)
            await _ask_arm(
                session, replace(first, prepared=add_salt(session.prepared, salt)), endpoint
            )
            if salt.value is None:
                return
        assert session.plan.limits.concurrency != "auto"
        await fill_cache(client, session.prepared, session.plan.limits.concurrency)


async def _ask_arm(session: _CheckSession, arm: Arm, endpoint: Endpoint) -> None:
    """Ask what is left of an arm, in its own run folder."""
    await ask_pass(
        arm.name, arm.plan, arm.prepared, endpoint, session.shared, session.seed + arm.shift
    )


class InvariantsPlan(msgspec.Struct, frozen=True):
    """The content of invariants_plan.json."""

    plan: Plan


def bind_folder(out_dir: Path, plan: Plan) -> None:
    """Record what is asked, and of which endpoint.

    Raises RunFolderError if the folder has answers to something else, which would be mixed up with
    these. The concurrency is part of it, since `alone` is compared with it.
    """
    saved = INVARIANTS.find_plan(out_dir, InvariantsPlan)
    known = None if saved is None else saved.plan
    check_same_passes(out_dir, known, plan, ("concurrency", "stream", "order"))
    INVARIANTS.write_plan(out_dir, InvariantsPlan(plan=plan))


def chunk_boundaries(out_dir: Path, chunk_tokens: Sequence[int]) -> list[str]:
    """Return the boundaries to try: `chunk_tokens`, and those of the servers' configs.

    The first pass reports the servers' configs. They are ignored if `chunk_tokens` is empty.
    """
    known: list[int] = []
    if chunk_tokens and has_report(out_dir / COLD):
        known = chunk_sizes(read_report(out_dir / COLD).endpoint.info)
    return [str(size) for size in dict.fromkeys((*chunk_tokens, *known))]


def read_texts(out_dir: Path) -> dict[str, Lengths | str]:
    """Return the texts that earlier sessions settled on."""
    return find_chunks(out_dir, Lengths | str)


def write_texts(out_dir: Path, placed: Placed) -> None:
    """Keep the texts around the boundaries for later sessions."""
    write_chunks(out_dir, placed)
