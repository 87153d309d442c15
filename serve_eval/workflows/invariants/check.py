"""Checks of one endpoint that need no right answers: the same prompts under a change that should change nothing.

Three passes come first: `cold`, which is an arm of its own where the server has just been started, then `base` and
`again`, which find the prompts in the prefix cache. How these two differ is the endpoint's own nondeterminism; an arm
that changes the answers of more prompts is broken, on the assumption that the arm and `again` can be exchanged: on a
sound server either is as likely to differ from `base`. Three kinds of arms follow from that.

* `cold`, `shuffled`, `repeated`, `rendered` and the chunks change what a sound server computes with (parts of a prompt
  out of the cache or not, other batches, other pieces of a prompt) or who takes thoughts and calls out of the text. The
  last bits of the numbers then change, and with them many texts, with nothing wrong. Only answers count there: few of
  them hang on the last bits. So it is for `streamed` (or `whole`), since how fast answers are taken decides which
  requests share a batch, unless requests are sent one at a time: then nothing of the computation depends on how an
  answer is sent back, `again` and the arm are an exchange to the last character, and texts and distances of scores
  count too.
* `alone` changes the batch size for every prompt, while `base` and `again` have the same one: numerics that depend on
  it change the same answers each time, so there is no exchange and changed answers accuse nobody. Other numerics make a
  wrong answer right as often as a right one wrong. So the arm is broken where the scores of `base` and `again` together
  are lower, or higher, than those of `alone` and `alone_again` in more prompts than the other way round.

Prompts of a length cannot be had of those of a task: the arms about chunks of long prompts ask generated ones, see
`chunk_lengths`. OUT/<arm> are ordinary run folders, OUT/invariants.json is the result. All arms but
`shuffled` ask in one random order, whose seed OUT/order.json keeps.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.client.connection import connect
from serve_eval.errors import PlanError, RunFolderError
from serve_eval.evaluation import first_token
from serve_eval.evaluation.agreement import answer_pairs
from serve_eval.evaluation.agreement.answer_pairs import Had
from serve_eval.evaluation.agreement.self_flips import self_flips
from serve_eval.evaluation.endpoint.deployment import chunk_sizes
from serve_eval.evaluation.endpoint.launch import check_launcher, launch, with_model
from serve_eval.evaluation.engine.progress import Labelled
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.storage import order_seed, run_folder
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import scoped
from serve_eval.schema import Endpoint, Invariant, Invariants, Plan, Progress, Spec
from serve_eval.stats.mcnemar import mcnemar
from serve_eval.stats.multiplicity import holm
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, PASS
from serve_eval.workflows.invariants.chunk_lengths import TASK as CHUNK_TASK
from serve_eval.workflows.invariants.chunk_lengths import Lengths, lengths

SCHEMA_VERSION = 1
PLAN_FILE, RESULT_FILE, CHUNKS_FILE = "invariants_plan.json", "invariants.json", "chunks.json"
LIMIT = 100
"""Prompts per task, unless told otherwise: every arm asks all of them, and two passes do so one at a time."""
ALPHA = 0.01
"""Chance of accusing a sound endpoint of anything at all, over all arms and tasks."""
BASE, AGAIN, COLD = "base", "again", "cold"
ALONE, ALONE_AGAIN = "alone", "alone_again"
COPIES = 8
"""How often each prompt is asked in a row for the arm `repeated`."""
CHUNKS = (2048, 8192)
"""Prompt tokens at which servers cut long prompts into chunks unless told otherwise: vLLM by its use, trtllm-serve's
max_num_tokens."""
CHUNK_PROMPTS = 44
"""Texts of each of the three lengths around a boundary."""
CHAT_TOKENS = 256
"""Most tokens of an answer to such a text by chat, where a model may think first."""

Placed = Mapping[str, Lengths | str]
"""By boundary, in prompt tokens: the texts around it, or why there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """A pass over the prompts: what is otherwise than in the first of the two passes `against`, whose second one is
    that again. None: it is only there to be compared with. `prepared` are its tasks where they are prepared already.

    `exchangeable`: on a sound server it may take the place of the second of `against` to the last character, so texts
    and distances of scores count too. `pair` is the arm once more, where both passes together are judged by whether the
    scores of `against` are lower or higher; changed answers are then only shown.
    `shift` is added to the seed of the order that the others share.
    """

    name: str
    what: str
    plan: Plan
    against: tuple[str, str] | None = (BASE, AGAIN)
    prepared: Sequence[PreparedTask] | None = None
    exchangeable: bool = False
    pair: str | None = None
    shift: int = 0


@scoped
async def check(
    plan: Plan,
    out_dir: Path,
    *,
    tokenizer: str | None = None,
    chunk_tokens: Sequence[int] = CHUNKS,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
    told: Callable[[str], None] = lambda line: None,
) -> Invariants:
    """Asks the prompts in every arm, one after the other, and tells which changes changed answers.

    `tokenizer` is the folder of a chat template: what is asked by chat is then also rendered here and asked as a text.
    `chunk_tokens` are the lengths at which the server may cut long prompts into chunks.
    Passes that are finished in the folder are not asked again. Raises ServeEvalError for what stops a run.
    """
    started_at, began = datetime.now(UTC), time.monotonic()
    if plan.limits.concurrency == "auto":
        raise PlanError("concurrency: these checks need a fixed number", hint="Such as --concurrency 64.")
    plan = replace(plan, limit=plan.limit or LIMIT, repeats=1, repeats_of={}, no_reference=True)
    plan = replace(plan, verdict=Spec(name="classic"), early_stop=None)
    extensions.include(plan.include_path)
    plan = await first_token.settled(await with_model(plan, environ), out_dir / COLD, environ)
    if not out_dir.exists():
        check_launcher(plan)
    prepared = await asyncio.to_thread(prepare, plan)
    arms, skipped = _arms(plan, prepared, tokenizer)
    chat = all(p.chat for p in prepared)
    with run_folder.held(out_dir, PLAN_FILE, "such checks"):
        _bind(out_dir, plan)
        (out_dir / RESULT_FILE).unlink(missing_ok=True)
        logs = out_dir / "servers"
        logs.mkdir(mode=0o700, exist_ok=True)

        placed = _placed(out_dir)
        seed = order_seed.shared(out_dir, plan, [out_dir / COLD])
        if (line := order_seed.not_followed(plan, seed)) is not None:
            told(f"warning: {line}")

        def every() -> list[_Arm]:
            return [*arms, *_chunk_arms(plan, {s: placed[s] for s in sizes() if s in placed}, chat=chat)]

        def sizes() -> list[str]:
            return _sizes(out_dir, chunk_tokens)

        def pending() -> list[_Arm]:
            return [arm for arm in every() if not (out_dir / arm.name / run_folder.REPORT_FILE).exists()]

        if pending() or any(size not in placed for size in sizes()):
            async with launch(plan, prepared, logs, told=told) as endpoint:
                for arm in pending():
                    await _pass(arm, out_dir, seed, endpoint, progress, environ, told)
                if new := [size for size in sizes() if size not in placed]:
                    placed |= await _place(plan, endpoint, new, environ, chat=chat)
                    run_folder.write_private(out_dir / CHUNKS_FILE, run_folder.pretty_json(placed))
                for arm in pending():
                    await _pass(arm, out_dir, seed, endpoint, progress, environ, told)
        skipped |= {f"chunked_{size}": why for size in sizes() if isinstance(why := placed[size], str)}
        found = replace(
            _judged(out_dir, plan, every(), skipped),
            started_at=started_at.isoformat(timespec="seconds"),
            wall_s=round(time.monotonic() - began, 3),
        )
        run_folder.write_private(out_dir / RESULT_FILE, run_folder.pretty_json(found))
    return found


def _arms(plan: Plan, prepared: Sequence[PreparedTask], tokenizer: str | None) -> tuple[list[_Arm], dict[str, str]]:
    """The passes over the tasks' own prompts in their order, and why others are left out."""
    limits = plan.limits
    many = limits.concurrency
    in_a_row = replace(plan, repeats=COPIES, limits=replace(limits, order="prefix"))
    # `prepared` has the prompts, which are the same in every arm, whatever the plan's seed. Folders of older versions
    # are bound to that of `shuffled`, and took its order from it.
    arms = [
        _Arm(name=COLD, what="asked for the first time, against what stands in the prefix cache", plan=plan),
        _Arm(name=BASE, what="", plan=plan, against=None),
        _Arm(name=AGAIN, what="", plan=plan, against=None),
        _Arm(
            name="shuffled",
            what="in another order, so that others share a batch",
            plan=replace(plan, seed=plan.seed + 1, limits=replace(limits, order="random")),
            shift=1,
        ),
        _Arm(
            name="streamed" if not limits.stream else "whole",
            what="as event streams" if not limits.stream else "not as event streams",
            plan=replace(plan, limits=replace(limits, stream=not limits.stream)),
            exchangeable=many == 1,
        ),
        _Arm(
            name="repeated",
            what=f"{COPIES} times in a row, so that copies share a batch: the last copy, against a single one",
            plan=in_a_row,
        ),
    ]
    arms = [replace(arm, prepared=prepared) for arm in arms]
    skipped = {}
    if many != 1:
        one = replace(plan, limits=replace(limits, concurrency=1))
        what = f"one at a time, against {many}: judged by scores, since batch size changes numerics"
        arms.append(_Arm(name=ALONE, what=what, plan=one, prepared=prepared, pair=ALONE_AGAIN))
        arms.append(_Arm(name=ALONE_AGAIN, what="", plan=one, against=None, prepared=prepared))
    else:
        skipped[ALONE] = "the concurrency is 1 already"
    if not all(p.chat for p in prepared):
        skipped["rendered"] = "not every task is asked by chat"
    elif any("tokenizer" in spec.options for spec in plan.tasks):
        skipped["rendered"] = "the template is rendered on our side already"
    elif tokenizer is None:
        skipped["rendered"] = "--tokenizer names no chat template"
    else:
        tasks = tuple(Spec(name=s.name, options={**s.options, "tokenizer": tokenizer}) for s in plan.tasks)
        what = "by the chat template rendered here, against the server's own"
        arms.append(_Arm(name="rendered", what=what, plan=replace(plan, tasks=tasks)))
    return arms, skipped


def _chunk_arms(plan: Plan, placed: Placed, *, chat: bool) -> list[_Arm]:
    """Texts just before and just beyond each boundary. Those beyond are compared with those just before it, and these
    with texts that are as much shorter: what a few lines more do is the same for both but for the boundary.

    One at a time: in a batch, prompts that would each fit are cut as well.
    """
    arms = []
    asked = min(plan.limit or CHUNK_PROMPTS, CHUNK_PROMPTS)
    for size, found in placed.items():
        if isinstance(found, str):
            continue
        name = f"chunked_{size}"
        what = f"texts of {found.above_tokens} tokens, against {found.below_tokens}: on both sides of {size}"
        for arm, lines, against in (
            (f"{name}_below", found.below, None),
            (f"{name}_shorter", found.shorter, None),
            (name, found.above, (f"{name}_below", f"{name}_shorter")),
        ):
            options: dict[str, Any] = {"lines": lines, "num_samples": asked}
            if chat:
                options |= {"apply_chat_template": True, "max_tokens": CHAT_TOKENS}
            task = Spec(name=CHUNK_TASK, options=options)
            own = replace(plan, tasks=(task,), limit=None, limits=replace(plan.limits, concurrency=1))
            arms.append(_Arm(name=arm, what=what, plan=own, against=against))
    return arms


def _sizes(out_dir: Path, chunk_tokens: Sequence[int]) -> list[str]:
    """The boundaries to try: `chunk_tokens` and, where these are not none, those of the servers' own configs, which the
    first pass tells."""
    told: list[int] = []
    if chunk_tokens and (out_dir / COLD / run_folder.REPORT_FILE).exists():
        told = chunk_sizes(answer_pairs.read_report(out_dir / COLD).endpoint.info)
    return [str(size) for size in dict.fromkeys((*chunk_tokens, *told))]


def _placed(out_dir: Path) -> dict[str, Lengths | str]:
    """The texts that earlier sessions settled on."""
    try:
        return msgspec.json.decode((out_dir / CHUNKS_FILE).read_bytes(), type=dict[str, Lengths | str])
    except (OSError, msgspec.MsgspecError):
        return {}


async def _place(
    plan: Plan, endpoint: Endpoint, sizes: Sequence[str], environ: Mapping[str, str], *, chat: bool
) -> dict[str, Lengths | str]:
    """Texts for each boundary."""
    async with connect(plan, endpoint, environ) as client:
        return {size: await lengths(client, int(size), chat=chat) for size in sizes}


def _bind(out_dir: Path, plan: Plan) -> None:
    """Writes down what is asked and of whom. Raises RunFolderError where the folder has answers to something else: they
    would be taken for these. How much is asked at a time belongs to it, since `alone` is compared with that."""
    file = out_dir / PLAN_FILE
    content = {"schema_version": SCHEMA_VERSION, "plan": plan}
    if file.exists() and any(one.stat().st_size for one in out_dir.glob("*/samples/*.jsonl")):
        try:
            saved = msgspec.convert(msgspec.json.decode(file.read_bytes())["plan"], Plan)
        except (msgspec.MsgspecError, KeyError, TypeError) as error:
            raise RunFolderError(f"{file} cannot be read: {error}", hint="Use another folder with -o.") from error
        if differing := run_folder.differences(_binding(saved), _binding(plan)):
            raise RunFolderError(
                f"{out_dir} holds such checks of something else:\n" + "\n".join(f"  {line}" for line in differing),
                hint="Use another folder with -o.",
            )
    run_folder.write_private(file, run_folder.pretty_json(content))


def _binding(plan: Plan) -> dict[str, Any]:
    """What of a plan may not change, as plain JSON."""
    found: dict[str, Any] = msgspec.to_builtins(plan)
    limits = found.pop("limits")
    for name in run_folder.FREE_FIELDS:
        found.pop(name, None)
    return {**found, "limits": {name: limits[name] for name in ("concurrency", "stream", "order")}}


async def _pass(
    arm: _Arm,
    out_dir: Path,
    seed: int,
    endpoint: Endpoint,
    progress: Progress | None,
    environ: Mapping[str, str],
    told: Callable[[str], None],
) -> None:
    await evaluate(
        arm.plan,
        out_dir / arm.name,
        progress=None if progress is None else Labelled(progress, arm.name),
        environ=environ,
        launching=lambda *_: nullcontext(endpoint),
        told=lambda line: told(f"{arm.name}: {line}"),
        prepared=arm.prepared,
        seed=seed + arm.shift,
    )


def _judged(out_dir: Path, plan: Plan, arms: Sequence[_Arm], skipped: Mapping[str, str]) -> Invariants:
    reports = {arm.name: answer_pairs.read_report(out_dir / arm.name) for arm in arms}
    found = []
    for arm in arms:
        if arm.against is None:
            continue
        for name in (task.result.task for task in reports[arm.name].tasks):

            def had(one: str, task: str = name) -> Had:
                return answer_pairs.read_task(out_dir / one, reports[one], task)

            pair = None if arm.pair is None else had(arm.pair)
            one = _tested(arm, name, [had(other) for other in (*arm.against, arm.name)], pair)
            if one is not None:
                found.append(one)
    corrected = holm([_p(one) for one in found])
    results = tuple(replace(one, p_holm=p, broken=p <= ALPHA) for one, p in zip(found, corrected, strict=True))
    broken = any(result.broken for result in results)
    return Invariants(
        schema_version=SCHEMA_VERSION,
        model=plan.model,
        base_url=reports[BASE].endpoint.base_url,
        alpha=ALPHA,
        results=results,
        skipped=skipped,
        exit_code=FAIL if broken else PASS if results else NOTHING_SCORED,
        started_at=reports[BASE].started_at,
        wall_s=0.0,
    )


def _tested(arm: _Arm, task: str, had: Sequence[Had], pair: Had | None) -> Invariant | None:
    """Test one arm for one task, before the correction for all of them; None where no prompt was answered each time.

    `had` are the two passes that it is compared with and its own.
    """
    changed = self_flips(
        arm.name,
        *had,
        other_run=-1,
        differ=answer_pairs.another_answer,
        exchangeable=arm.exchangeable,
        alpha=ALPHA,
    )
    if changed is None:
        return None
    lower, higher = (None, None) if pair is None else _fell_and_rose((had[2], pair), (had[0], had[1]))
    return Invariant(
        task=task,
        arm=arm.name,
        what=arm.what,
        changed=changed,
        agreement=answer_pairs.agreement(had[0], had[2], b_run=-1),
        p_holm=1.0,
        broken=False,
        fell=lower,
        rose=higher,
    )


def _fell_and_rose(before: tuple[Had, Had], after: tuple[Had, Had]) -> tuple[int, int]:
    """Count the prompts whose score, summed over two passes, got worse and better from two passes to two others."""
    sign = 1.0 if before[0].task.result.metric.higher_is_better else -1.0
    passes = [had.lines[0] for had in (*before, *after)]
    prompts = [p for p in passes[0] if all(p in lines for lines in passes)]
    changes = []
    for prompt in prompts:
        one, other, first, second = (lines[prompt].value for lines in passes)
        changes.append(sign * ((first - one) + (second - other)))  # 0 to the last bit where the passes are alike
    return sum(change < 0.0 for change in changes), sum(change > 0.0 for change in changes)


def _p(one: Invariant) -> float:
    """The p that accuses: of more changed answers, or where scores are judged, of more changes one way (two-sided)."""
    if one.fell is None or one.rose is None:
        return one.changed.p
    return min(1.0, 2.0 * mcnemar(max(one.fell, one.rose), min(one.fell, one.rose)).p_mid)
