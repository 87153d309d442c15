"""Open the servers that a reference is made with, and collect the texts of its probes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from serve_eval.errors import NotComparableError, PlanError
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.run_session import Stopwatch
from serve_eval.evidence.probe_floor import measure_noise, measure_siblings
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins import extensions
from serve_eval.schema import HOLDOUT, Sample, VerificationReference
from serve_eval.workflows.verify.reference import (
    CandidateCutter,
    ReferenceMaker,
    describe_protocol,
    measure_step,
)
from serve_eval.workflows.verify.servers import NamedPlan, VerifyRules, VerifySession, open_server


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
