"""Take the probes of a reference: requests of its tasks, by which a deployment is recognized.

They are asked as a run asks them, at the deployment that answered the runs of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from serve_eval.client.client import Client
from serve_eval.errors import NotComparableError, PlanError
from serve_eval.evaluation.capabilities.sampling import choose_sent, to_fields
from serve_eval.evaluation.identity import (
    IdentityAsker,
    draw_samples,
    explain_defaults,
    explain_unasked,
    learn_defaults,
    shortest,
)
from serve_eval.evidence.identity import (
    LEAST_UNCERTAIN,
    compare_whole,
    count_uncertain,
    explain_unfit,
)
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import (
    IdentityProbe,
    IdentityProbes,
    IdentityReading,
    Plan,
    Sample,
    SamplingDefaults,
)
from serve_eval.storage import journal
from serve_eval.storage.file_names import samples_file

SHORTEST, LONGEST = 8, 64
"""Tokens of a probe at first, and at most. They double while answers begin with certain tokens."""
AGAIN = 2
"""Further answers to each probe, which show by how much the server differs from itself."""
WHOLE = 3
"""Answers that are asked to their ends, those that were the shortest in the run."""


async def take_probes(
    plan: Plan,
    prepared: Sequence[PreparedTask],
    client: Client,
    run: Path,
    count: int,
    notify: Callable[[str], None],
) -> dict[str, IdentityProbes]:
    """Return `count` probes of each task. `run` is a run of the reference that was just asked.

    Raises NotComparableError for a task whose probes could never show that a deployment is the same
    one, with the reason.
    """
    endpoint = client.endpoint.with_info(**await client.describe())
    defaults = choose_sent(await learn_defaults(client, endpoint, prepared), plan.server_defaults)
    client.encoder.neutral = to_fields(defaults)
    found = {}
    for one in prepared:
        if why := explain_defaults(defaults, defaults, one.task):
            raise _build_error(one, why)
        taken = await _take(plan, one, client, run, count, defaults)
        if why := explain_unfit(taken, shortest(taken)):
            raise _build_error(one, why)
        found[one.task.name] = taken
        notify(
            f"{one.task.name}: {len(taken.probes)} probes of {taken.length} tokens,"
            f" {len(taken.whole)} whole answers"
        )
    return found


def check_probed(prepared: Sequence[PreparedTask], count: int) -> None:
    """Raise ServeEvalError for probes that no server could answer, before the runs are asked."""
    if count < 0:
        raise PlanError(f"--probes must be 1 or more, not {count}")
    for one in prepared:
        if count and (why := explain_unasked(one)):
            raise _build_error(one, why)


def _build_error(prepared: PreparedTask, why: str) -> NotComparableError:
    return NotComparableError(
        f"{prepared.task.name}: probes cannot show that a deployment is the same one: {why}",
        hint="Leave out --probes: runs that were asked are kept, and registered without probes.",
    )


async def _take(
    plan: Plan,
    prepared: PreparedTask,
    client: Client,
    run: Path,
    count: int,
    defaults: SamplingDefaults,
) -> IdentityProbes:
    asker = IdentityAsker(client, prepared)
    samples = draw_samples(prepared, count, plan.seed)
    known = IdentityProbes(
        task=prepared.task.name,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        source=client.endpoint.base_url,
        fingerprint=dict(prepared.fingerprint),
        stream=plan.limits.stream,
        concurrency=asker.in_flight,
        length=SHORTEST,
        defaults=defaults,
        probes=(),
        whole=(),
    )
    while True:
        found = await _ask(asker, samples, known.length)
        known = replace_probes(known, samples, found)
        enough = min(LEAST_UNCERTAIN, len(samples))
        if count_uncertain(known.probes, shortest(known)) >= enough or known.length >= LONGEST:
            break
        known = msgspec.structs.replace(known, length=2 * known.length)
    again = [await _ask(asker, samples, known.length) for _ in range(AGAIN)]
    known = replace_probes(known, samples, found, again)
    return msgspec.structs.replace(known, whole=await _take_whole(asker, run))


def replace_probes(
    known: IdentityProbes,
    samples: Sequence[Sample],
    first: Sequence[IdentityReading],
    again: Sequence[Sequence[IdentityReading]] = (),
) -> IdentityProbes:
    """Return the probes with the first answers to samples, and further ones."""
    probes = tuple(
        IdentityProbe(id=sample.id, reading=reading, again=more)
        for sample, reading, *rest in zip(samples, first, *again, strict=True)
        for more in (tuple(rest),)
    )
    return msgspec.structs.replace(known, probes=probes)


async def _take_whole(asker: IdentityAsker, run: Path) -> tuple[IdentityProbe, ...]:
    """Return answers to their ends that came twice alike, the shortest ones of the run."""
    samples = {one.id: one for one in asker.prepared.dataset.samples}
    ended = [
        (one.response.usage.completion_tokens, one.id)
        for one in journal.read(samples_file(run, asker.prepared.task.name))
        if one.response is not None and not one.response.truncated and one.id in samples
    ]
    chosen = [samples[name] for _, name in sorted(ended)[:WHOLE]]
    first, again = [await _ask(asker, chosen, None) for _ in range(2)]
    return tuple(
        IdentityProbe(id=sample.id, reading=one)
        for sample, one, other in zip(chosen, first, again, strict=True)
        if not compare_whole(one, other)
    )


async def _ask(
    asker: IdentityAsker, samples: Sequence[Sample], length: int | None
) -> list[IdentityReading]:
    """Return the answers to all samples. Raises NotComparableError if one has none."""
    found = await asker.ask_all(samples, [length] * len(samples))
    answered = [one for one in found if one is not None]
    if len(answered) < len(samples):
        raise _build_error(asker.prepared, f"a request got no answer: {asker.why}")
    return answered
