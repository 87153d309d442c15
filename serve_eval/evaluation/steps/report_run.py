"""Report on a session: remarks for the reader, and the verdicts."""

from __future__ import annotations

from collections.abc import Iterator

from serve_eval.evaluation import first_token
from serve_eval.evaluation.build_report import report_on
from serve_eval.evaluation.endpoint import system_fingerprints
from serve_eval.evaluation.endpoint.launch import about_endpoint
from serve_eval.evaluation.run_session import RunSession
from serve_eval.evidence import engine_counters
from serve_eval.schema import Report
from serve_eval.storage.journal import withdrawals
from serve_eval.storage.records.reply_proofs import count_unproven, describe_unproven, judges_proofs
from serve_eval.storage.records.reply_proofs import describe_proofs as told_of_steps
from serve_eval.storage.reports.report_file import write_report


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
    yield from system_fingerprints.remarks(
        system_fingerprints.merge_spans(w.accumulator.traffic for w in session.tasks),
        [one.endpoint.base_url for one in noted],
    )
    for one in noted:
        yield from () if one.thoughts is None else one.thoughts.remarks()
    yield from engine_counters.remarks([one.engine for one in noted])
    yield from first_token.remarks(
        [w.prepared for w in session.tasks], first_token.list_abilities(noted)
    )


def _about_connections(session: RunSession) -> Iterator[str]:
    """Yield warnings about connections, of the endpoint or of judges, that were out of step."""
    yield from _about_outages(session)
    yield from told_of_steps(session.proofs, [w.journal.path for w in session.tasks])
    for w in session.tasks:
        if w.judgements is not None:
            path = w.judgements.path
            yield from told_of_steps(
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
