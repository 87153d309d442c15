"""Report on a session: judge its tasks, and collect remarks for the reader.

vLLM's names its version and a hash of its configuration, so that unlike servers behind one address
have unlike ones. Hosted models change theirs without notice: several are stated, not accused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from serve_eval.evaluation import settle
from serve_eval.evaluation.build_report import report_on
from serve_eval.evaluation.launch import about_endpoint
from serve_eval.evaluation.run_session import RunSession
from serve_eval.evidence import engine_counters
from serve_eval.schema import AnswerSpan, Report, Traffic
from serve_eval.storage.answer_origins import (
    count_unproven,
    describe_proofs,
    describe_unproven,
    judges_proofs,
)
from serve_eval.storage.journal import withdrawals
from serve_eval.storage.report_file import write_report


def report_run(session: RunSession, *, strict: bool, asked: bool = False) -> Report:
    """Return the report of the folder's content, without writing anything.

    `asked`: with the remarks about a run that was just asked.
    """
    more = _about_streams(session) if asked else ()
    unproven = _count_unproven(session)
    return report_on(
        session,
        [*describe_unproven(unproven), *_remarks(session), *more],
        strict=strict,
        unproven=unproven,
    )


def _count_unproven(session: RunSession) -> int:
    """Return the number of answers, also of judges, that count although nothing proves them.

    Reads no journal of a settled session if steps.jsonl names none.
    """
    found = 0
    for w in session.tasks:
        read = [(w.journal.path, session.proofs)]
        if w.judgements is not None:
            read.append((w.judgements.path, judges_proofs(w.judgements.path)))
        for path, proofs in read:
            if proofs.trusted or not session.settled:
                found += count_unproven(path, proofs)
    return found


def save_report(session: RunSession, *, strict: bool) -> Report:
    """Return the report of a run that was asked, and write it to the folder."""
    report = report_run(session, strict=strict, asked=True)
    write_report(session.folder, report)
    return report


def _remarks(session: RunSession) -> Iterator[str]:
    """Yield the session's warnings and remarks about connections, endpoint and first tokens."""
    noted = session.noted.read()
    yield from session.warnings
    yield from _about_connections(session)
    yield from about_endpoint(
        session.asked_plan,
        session.endpoint,
        noted,
        [w.prepared.task for w in session.tasks],
    )
    yield from remarks(
        merge_spans(w.accumulator.traffic for w in session.tasks),
        [one.endpoint.base_url for one in noted],
    )
    for one in noted:
        yield from () if one.thoughts is None else one.thoughts.remarks()
    yield from engine_counters.remarks([one.engine for one in noted])
    yield from settle.remarks([w.prepared for w in session.tasks], settle.list_abilities(noted))


def _about_connections(session: RunSession) -> Iterator[str]:
    """Yield warnings about connections, of the endpoint or of judges, that were out of step."""
    yield from _about_outages(session)
    yield from describe_proofs(session.proofs, [w.journal.path for w in session.tasks])
    for w in session.tasks:
        if w.judgements is not None:
            path = w.judgements.path
            yield from describe_proofs(
                judges_proofs(path), [path], f"the judges of {w.prepared.task.name}"
            )


def _about_outages(session: RunSession) -> Iterator[str]:
    """Yield a warning if no server listened for a while, with the answers that it cost."""
    loads = session.noted.loads()
    if not (outages := sum(load.outages for load in loads)):
        return
    times = "once" if outages == 1 else f"{outages} times"
    away_s = sum(load.away_s for load in loads)
    journals = [w.journal.path for w in session.tasks]
    gone = sum(len(withdrawals(path)) for path in journals if path.exists())
    some = f"{gone} answers were" if gone != 1 else "1 answer was"
    cost = f": {some} withdrawn and asked again, since nothing proves them" if gone else ""
    yield f"the endpoint was away {times}, for {away_s:.1f} s{cost}"


def _about_streams(session: RunSession) -> Iterator[str]:
    """Yield a warning if streams were requested but none came."""
    # Requests for log-probabilities of prompts are never streamed.
    tallies = [w.accumulator for w in session.tasks if not w.prepared.task.prompt_logprobs]
    if (
        session.plan.limits.stream
        and any(t.scored for t in tallies)
        and not any(t.traffic.ttft_s for t in tallies)
    ):
        yield "streams were requested but none came: times to the first token are not available"


Spans = Mapping[str, AnswerSpan]


def merge_spans(traffics: Iterable[Traffic]) -> Spans:
    """Return the answers of several tasks by fingerprint, in the order of their beginnings."""
    found: dict[str, AnswerSpan] = {}
    for traffic in traffics:
        for name, one in traffic.system_fingerprints.items():
            other = found.get(name, one)
            found[name] = AnswerSpan(
                answers=one.answers + (other.answers if name in found else 0),
                first_s=min(one.first_s, other.first_s),
                last_s=max(one.last_s, other.last_s),
            )
    return dict(sorted(found.items(), key=lambda item: item[1].first_s))


def remarks(spans: Spans, addresses: Sequence[str]) -> list[str]:
    """Return a warning if the answers carry several fingerprints; `addresses` are the sessions'.

    Fingerprints one after the other at several addresses are expected, and another remark names the
    addresses.
    """
    if len(spans) < 2:
        return []
    replaced = all(a.last_s <= b.first_s for a, b in pairwise(spans.values()))
    if not replaced:
        each = ", ".join(f"{name} ({one.answers} answers)" for name, one in spans.items())
        return [
            f"the answers carry {len(spans)} system_fingerprints, mixed from"
            f" {_time(sorted(one.first_s for one in spans.values())[1])} on: {each}: servers of"
            " different configurations answer at one address"
        ]
    if len(set(addresses)) > 1:
        return []
    first, *later = spans.items()
    parts = [f"{first[0]} ({first[1].answers} answers)"]
    parts += [f"from {_time(one.first_s)} on {name} ({one.answers} answers)" for name, one in later]
    return [
        f"the answers carry {len(spans)} system_fingerprints, one after the other:"
        f" {', '.join(parts)}: the server was replaced, or its configuration changed, during the"
        " run"
    ]


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%H:%M:%S} UTC"
