"""Verify endpoints against a reference, or make one: probes of two tokens until all is clear.

A reference is a running server or a file that was registered. Its probes are texts that break off
where the next token is uncertain. A server is asked round after round, in which all of its requests
are in flight together, until the evidence decides or the budget ends.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import msgspec

from serve_eval.errors import NotComparableError, PlanError
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.run_session import Stopwatch, ignore
from serve_eval.evidence.probe_floor import check_floor, limits_of, measure_noise, measure_siblings
from serve_eval.evidence.probe_judging import CLEAN, UNSOUND
from serve_eval.evidence.probe_sentences import DECIDES
from serve_eval.evidence.prompt_tokens import PromptSide
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import (
    HOLDOUT,
    Probe,
    Progress,
    Sample,
    ServerCounts,
    Verification,
    VerificationReference,
)
from serve_eval.workflows.verify.fleet import MAJORITY, judge_fleet
from serve_eval.workflows.verify.judged import JudgedServer, judge_together
from serve_eval.workflows.verify.legs import GivenWorker, PathMeter, verify_parts, warn_of_path
from serve_eval.workflows.verify.reference import (
    CandidateCutter,
    ReferenceMaker,
    describe_protocol,
    measure_step,
)
from serve_eval.workflows.verify.result import to_result
from serve_eval.workflows.verify.servers import (
    PROBES,
    NamedPlan,
    VerifyRules,
    VerifySession,
    audit_prompts,
    check_route,
    compare_counts,
    open_server,
    open_servers,
)

ROUND = 20
"""Probes of a round."""
REPEATS = 10
"""Further answers to each of a registered reference's first probes, at either load."""
NO_FLOOR = (
    "No floor is known, so no server can be called another model, and one that differs is"
    " UNDECIDED: give --sibling HOST or --floor NATS"
)
UNKNOWN_FLOOR = (
    "The siblings answer as replicas do, so the floor is unknown: no server can be called another"
    f" model, and one that differs is UNDECIDED; {DECIDES}"
)
SPARE = 1.02
"""Probes per answer of siblings that is needed, since some measure nothing."""
SIBLING_PROBES = 60
"""Probes with which a sibling's floor is measured before a server is judged by it."""


@with_scope
async def register(
    server: NamedPlan,
    siblings: Sequence[NamedPlan],
    rules: VerifyRules,
    out_dir: Path,
    *,
    environ: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    notify: Callable[[str], None] = ignore,
) -> VerificationReference:
    """Ask a server, and its siblings, all probes of the budget, and return the reference.

    With siblings it has some probes more if the budget is the default one or larger, so that their
    answers exclude healthy flips.

    Raises NotComparableError if the server reports no log-probabilities, or is never uncertain,
    and what stops a run.
    """
    session = VerifySession(
        rules=rules, out_dir=out_dir, environ=environ, notify=notify, progress=progress
    )
    async with AsyncExitStack() as stack:
        made = await open_maker(server, siblings, session, stack)
        made.repeats = REPEATS
        enough = _count_enough(len(siblings)) if rules.probes >= PROBES else 0
        await made.extend(max(rules.probes, enough))
        known = to_reference(made, rules)
        check_floor(known, server.name)
        if session.stand_ins:
            raise PlanError(
                "--register: the stand-in of a rehearsal is no reference",
                hint="Leave --rehearse out, and name servers of a model.",
            )
        return known


@with_scope
async def verify(
    reference: NamedPlan | VerificationReference,
    servers: Sequence[NamedPlan],
    siblings: Sequence[NamedPlan],
    rules: VerifyRules,
    out_dir: Path,
    *,
    source: str = "",
    workers: Sequence[GivenWorker] = (),
    tokenizer: PromptSide | None = None,
    environ: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    notify: Callable[[str], None] = ignore,
) -> tuple[Verification, VerificationReference]:
    """Judge servers against a reference. Return the result, and the reference that was used.

    If a server is another one, its parts are judged too: `workers`, or those that it names.
    `source` names the file of a reference. With a `tokenizer`, prompts are audited on each server;
    without one, on those that are another one. Raises what `register` raises, and EndpointError for
    a server that answers too little.
    """
    clock = Stopwatch()
    session = VerifySession(
        rules=rules, out_dir=out_dir, environ=environ, notify=notify, progress=progress
    )
    async with AsyncExitStack() as stack:
        if isinstance(reference, VerificationReference):
            check_route(rules.route, reference, source)
            made, known = None, reference
            name = source
        else:
            made = await open_maker(reference, siblings, session, stack)
            await made.extend(SIBLING_PROBES if siblings else ROUND)
            known, name = to_reference(made, rules), reference.name
        known = _settle_floor(known, rules, name, notify)
        asked = await open_servers(servers, session, stack, route=known.route)
        judged = judge_together(asked, known)
        given = workers if len(asked) == 1 else ()
        meters = [PathMeter(server, given) for server in asked]
        await asyncio.gather(*(meter.begin() for meter in meters))
        await _ask_until_decided(judged, known, made, session)
        engines = await asyncio.gather(*(meter.end() for meter in meters))
        _check_any_left(judged, engines, session)
        others = [one for one in judged if one.evidence.conclude() in UNSOUND]
        if made is not None:
            if others:  # Enough for their parts to be found sound.
                await made.extend(min(rules.probes, SIBLING_PROBES))
            known = msgspec.structs.replace(
                to_reference(made, rules),
                floor=known.floor,
                noise=known.noise,
                median=known.median,
            )
        sides = []
        for one, counted in zip(judged, engines, strict=True):
            if one.lost:
                continue
            prompts = await _audit(one, made, tokenizer)
            side = one.result()
            prompts = (*compare_counts(one.prompt_gaps), *prompts)
            sides.append(msgspec.structs.replace(side, prompts=prompts, engines=counted))
        for one in others:
            probes = known.probes[: rules.probes]
            sides += await verify_parts(one, known, probes, workers, session)
    own = [] if made is None else [made.server, *made.siblings]
    return to_result(known, sides, name, clock, own, session), known


async def _ask_until_decided(
    judged: Sequence[JudgedServer],
    known: VerificationReference,
    made: ReferenceMaker | None,
    session: VerifySession,
) -> None:
    """Ask servers round after round, and the siblings what they have not answered yet."""
    rules = session.rules
    while pending := [one for one in judged if not one.is_decided(rules.probes, rules.tokens)]:
        begin = pending[0].evidence.tried
        if made is not None:
            await made.extend(min(rules.probes, begin + ROUND))
        probes = (known.probes if made is None else made.probes)[: rules.probes]
        if begin >= len(probes):
            break
        await asyncio.gather(
            *(_ask_or_lose(one, probes[begin : begin + ROUND], session) for one in pending)
        )
    if made is not None and any(one.evidence.lacks_answers for one in judged):
        await made.extend(_count_enough(len(made.siblings)))
    for one in judged:
        one.end(known.probes if made is None else made.probes)


def _settle_floor(
    known: VerificationReference, rules: VerifyRules, name: str, notify: Callable[[str], None]
) -> VerificationReference:
    """Return the reference with the floor to use, and say at the start if there is none.

    Raises NotComparableError for limits that no distance can exceed.
    """
    if rules.floor is not None:
        known = msgspec.structs.replace(known, floor=rules.floor, floor_given=True)
    check_floor(known, name)
    if known.floor is None:
        notify(NO_FLOOR)
    elif not limits_of(known).known:
        notify(UNKNOWN_FLOOR)
    return known


def _count_enough(siblings: int) -> int:
    """Return the probes of which siblings give CLEAN answers, with some to spare; 0 without any."""
    return math.ceil(SPARE * CLEAN / siblings) if siblings else 0


async def _ask_or_lose(one: JudgedServer, probes: Sequence[Probe], session: VerifySession) -> None:
    """Ask a round of probes, and note the server as lost if it cannot be judged."""
    if await session.keep(one.server.name, one.ask(probes)) is None:
        one.lost = True


def _check_any_left(
    judged: Sequence[JudgedServer],
    engines: Sequence[Sequence[ServerCounts]],
    session: VerifySession,
) -> None:
    """Raise the first error if no server is left, with what the servers behind it counted."""
    if session.errors and all(one.lost for one in judged):
        error = session.errors[0]
        counted = zip(judged, engines, strict=True)
        told = [line for one, counts in counted for line in warn_of_path(one.server.name, counts)]
        error.hint = "\n".join([*told, *filter(None, [error.hint])])
        raise error


@with_scope
async def verify_fleet(
    servers: Sequence[NamedPlan],
    rules: VerifyRules,
    out_dir: Path,
    *,
    environ: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    notify: Callable[[str], None] = ignore,
) -> tuple[Verification, VerificationReference]:
    """Judge servers by their majority. Return the result, and the reference that was used.

    Raises what `verify` raises.
    """
    clock = Stopwatch()
    session = VerifySession(
        rules=rules, out_dir=out_dir, environ=environ, notify=notify, progress=progress
    )
    async with AsyncExitStack() as stack:
        made, left = None, list(servers)
        while made is None and left:
            one = left.pop(0)
            made = await session.keep(one.name, _find_probes(one, session, stack))
        if made is None:
            raise session.errors[0]
        first = to_reference(made, rules)
        found = await judge_fleet(made, left, first, session, stack)
    middle, known = found.middle, found.known
    result = to_result(known, found.sides, MAJORITY + middle.name, clock, [middle], session)
    return replace(result, groups=tuple(found.groups)), known


async def _find_probes(
    server: NamedPlan, session: VerifySession, stack: AsyncExitStack
) -> ReferenceMaker:
    """Ask a server of a fleet for the first round of probes. Raises what `register` raises."""
    made = await open_maker(server, (), session, stack)
    await made.extend(ROUND)
    return made


async def _audit(
    one: JudgedServer, made: ReferenceMaker | None, tokenizer: PromptSide | None
) -> tuple[str, ...]:
    """Return what a server makes of prompts, if that is asked for or may explain the outcome."""
    if tokenizer is not None:
        return await audit_prompts(one.server, tokenizer)
    if one.evidence.conclude() in UNSOUND and made is not None:
        return await audit_prompts(one.server, made.server.client)
    return ()


async def open_maker(
    server: NamedPlan,
    siblings: Sequence[NamedPlan],
    session: VerifySession,
    stack: AsyncExitStack,
) -> ReferenceMaker:
    """Open a server and its siblings, and collect the texts of the probes.

    Raises NotComparableError if the server lists no log-probabilities, and what stops a run.
    """
    plan = server.plan
    extensions.include(plan.include_path)
    rules = session.rules
    texts = (
        texts_of_tasks(await asyncio.to_thread(prepare, plan))
        if rules.text is None
        else read_texts(rules.text)
    )
    asked = await stack.enter_async_context(open_server(server, session, route=rules.route))
    if not asked.lists:
        raise NotComparableError(
            f"{server.name}: UNSUPPORTED: the server reports no log-probabilities of its tokens",
            hint="A reference needs them: use a server that takes logprobs=5.",
        )
    others = []
    for sibling in siblings:
        opening = open_server(sibling, session, route=asked.route)
        other = await stack.enter_async_context(opening)
        if not other.lists:
            raise NotComparableError(
                f"{sibling.name}: UNSUPPORTED: the sibling reports no log-probabilities",
                hint="A floor is measured by them: name another sibling, or give --floor NATS.",
            )
        other.salted = asked.salted and other.salted
        others.append(other)
    cutter = CandidateCutter(texts, rules.seed)
    if (context := await asked.client.context_tokens()) is not None:
        cutter.fit(context)
    protocol = describe_protocol(asked, texts, rules.text, [task.name for task in plan.tasks])
    return ReferenceMaker(server=asked, siblings=others, cutter=cutter, protocol=protocol)


def to_reference(made: ReferenceMaker, rules: VerifyRules) -> VerificationReference:
    """Return the reference with the probes so far."""
    measured = measure_siblings(made.probes)
    info = made.server.client.endpoint
    return VerificationReference(
        made_at=Stopwatch().started_at,
        model=info.model or "",
        server=info.info.server,
        server_version=info.info.version,
        fingerprint=made.server.fingerprint,
        source=info.base_url,
        seed=rules.seed,
        protocol=made.protocol,
        salted=made.server.salted,
        route=made.server.route,
        noise=measure_noise(made.probes),
        step=measure_step(made.probes),
        floor=rules.floor if measured is None or rules.floor is not None else measured[0],
        floor_given=rules.floor is not None,
        median=None if measured is None else measured[1],
        sampling_defaults=made.server.defaults,
        probes=tuple(made.probes),
    )


LEAST_CHARS = 20
LEAST_TEXTS = 5


def texts_of_tasks(tasks: Sequence[PreparedTask]) -> list[str]:
    """Return each prompt with its expected answer, except for those that must not be shown.

    Raises PlanError if there are too few.
    """
    found = [
        "".join(_parts(sample))
        for prepared in tasks
        for sample in prepared.dataset.samples
        if HOLDOUT not in sample.metadata
    ]
    return _check([text for text in found if len(text) >= LEAST_CHARS], "the tasks have")


def read_texts(path: Path) -> list[str]:
    """Return the paragraphs of a file. Raises PlanError for a file that has too few."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"verify.text {path}: {error}") from error
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", content)]
    return _check([part for part in parts if len(part) >= LEAST_CHARS], f"verify.text {path} has")


def _check(texts: list[str], who: str) -> list[str]:
    if len(texts) < LEAST_TEXTS:
        raise PlanError(
            f"{who} {len(texts)} texts of {LEAST_CHARS} characters or more;"
            f" probes need {LEAST_TEXTS}",
            hint="Name other tasks with --tasks, or a file of paragraphs: --set verify.text=FILE.",
        )
    return texts


def _parts(sample: Sample) -> Iterator[str]:
    if isinstance(sample.prompt, str):
        yield sample.prompt
    else:
        yield "\n".join(message.text for message in sample.prompt)
    yield sample.target
