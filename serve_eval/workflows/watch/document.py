"""Make the document of a watch from the files in its folder, and its rounds as lines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.report.ci_result import CiCase, CiState, CiSuite, OneLine
from serve_eval.report.document import Block, Conclusion, Depth, Document, Statement
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, PictureSection
from serve_eval.report.pictures import Picture, TrendBand, TrendPoint, draw_distribution, draw_trend
from serve_eval.schema import ResultHeader
from serve_eval.workflows.watch import bets, judging, record
from serve_eval.workflows.watch.alarming import BROKEN
from serve_eval.workflows.watch.job import WatchJob
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.record import Seen, State, WatchAlarm

MOST_ROUNDS = 500
"""Rounds that are drawn and listed: the latest ones."""
REPAIRED = (
    "after fixing the cause, repeat the command with --forget-alarms: nothing is asked before"
)


def read_document(job: WatchJob, folder: Path, exit_code: int) -> Document:
    """Return the document of the watch in a folder. Raises RunFolderError if it has none."""
    state = record.load(folder, job.bound)
    if state is None:
        raise RunFolderError(f"{folder} holds no watch")
    rounds = record.later_than(folder, 0)
    return make_document(
        state, rounds, job.rules, job.base_url, exit_code, folder=folder, ends=job.ends
    )


def make_document(
    state: State,
    rounds: Sequence[Seen],
    rules: WatchRules,
    base_url: str,
    exit_code: int,
    *,
    folder: Path | None = None,
    ends: bool = True,
) -> Document:
    """Return the document of a watch. `rounds` are all of its rounds, oldest first.

    `ends`: an alarm ends the watch.
    """
    counts = _count(state, rounds)
    conclusions = [_describe_alarm(alarm, counts) for alarm in state.standing]
    document = Document(
        "watch",
        f"serve-eval watch {base_url}",
        ResultHeader(
            started_at=rounds[0].started_at if rounds else "",
            wall_s=sum(seen.seconds for seen in rounds),
            model=state.model,
            exit_code=exit_code,
            rehearsal=state.rehearsal,
        ),
        conclusions=conclusions or [_describe_calm(state, rounds, rules, counts)],
        noun="alarms",
        endpoint=base_url,
        statements=list(_describe_all(state, rounds, rules, ends=ends)),
        blocks=list(_list_blocks(state, rounds[-MOST_ROUNDS:], rules)),
        result=None if folder is None else folder / record.STATE_FILE,
    )
    return replace(document, suites=[_make_suite(state, document)])


def _count(state: State, rounds: Sequence[Seen]) -> str:
    failures = sum(sum(seen.failures.values()) for seen in rounds)
    asked = sum(len(seen.asked) for seen in rounds)
    several = "" if state.rounds == 1 else "s"
    return f"{state.rounds} round{several} with {asked:,} questions, {failures} failed"


def _describe_alarm(alarm: WatchAlarm, counts: str) -> Conclusion:
    """Return the conclusion of an active alarm, whose words have the figures and the cause."""
    when = f"round {alarm.round}, {alarm.at[:19].replace('T', ' ')} UTC"
    return Conclusion(
        alarm.name,
        "ALARM",
        counts=counts,
        cause=alarm.told,
        statements=[Statement("since", when)],
    )


def _describe_calm(
    state: State, rounds: Sequence[Seen], rules: WatchRules, counts: str
) -> Conclusion:
    """Return the conclusion of a watch without an active alarm."""
    if state.accuracy is None:
        told = describe_unjudged(state, rules) or ""
        return Conclusion("accuracy", "BASELINE", counts=counts, cause=told)
    return Conclusion(
        "accuracy",
        "INCONCLUSIVE" if state.rehearsal else "NO ALARM",
        figures=_compare_accuracy(state, rules),
        counts=counts,
    )


def _compare_accuracy(state: State, rules: WatchRules) -> str:
    """Return the accuracy of the last rounds against that of the baseline."""
    assert state.accuracy is not None
    answers = sum(answered for _, answered, _ in state.recent)
    right = sum(score for _, _, score in state.recent)
    now = f"{right / answers:.1%} in the last rounds against a" if answers else "a"
    least = state.accuracy.floor - rules.tolerance
    return f"{now} baseline of {state.accuracy.mean:.1%}, alarm if below {least:.1%}"


def _describe_all(
    state: State, rounds: Sequence[Seen], rules: WatchRules, *, ends: bool
) -> Iterator[Statement]:
    """Yield the evidence of the last round, what is not known, and how to go on."""
    if state.bets.get(bets.ACCURACY) is not None:
        text = describe_accuracy(state, rules).removeprefix("evidence ")
        yield Statement("evidence", text)
    if rounds:
        for line in describe_probes(state, rounds[-1]):
            yield Statement("probes", line.removeprefix("probes "))
    kinds = {alarm.kind for alarm in state.standing}
    if kinds and state.accuracy is not None:
        depth = Depth.MORE if bets.ACCURACY in kinds else Depth.FIRST  # its alarm says so
        text = _compare_accuracy(state, rules)
        yield Statement("accuracy", text, depth=depth)
    checked = next((seen for seen in reversed(rounds) if seen.checks is not None), None)
    if checked is not None:
        yield from _describe_smoke(checked)
    if rounds and (failure := rounds[-1].first_failure):
        yield Statement("failure", failure, depth=Depth.MORE)
    if (gap := say_gap(state, rules)) is not None:
        yield Statement("not known", gap)
    if ends and any(alarm.kind in bets.levels(state) for alarm in state.standing):
        yield Statement("note", REPAIRED)
    tokens = sum(seen.tokens for seen in rounds)
    yield Statement("cost", f"{tokens:,} tokens", depth=Depth.MORE)


def _describe_smoke(seen: Seen) -> Iterator[Statement]:
    """Yield the outcomes of the last smoke test, and what did not pass."""
    assert seen.checks is not None
    counts = Counter(seen.checks.values())
    told = ", ".join(f"{counts[name]} {name}" for name in ("PASS", "FAIL", "UNSUPPORTED"))
    yield Statement("smoke", f"{told} in round {seen.round}")
    for name, outcome in seen.checks.items():
        if outcome != "PASS":
            text = ": ".join(filter(None, (name, seen.told.get(name, ""))))
            yield Statement(outcome.lower()[:6], text, depth=Depth.MORE)


def _list_blocks(state: State, rounds: Sequence[Seen], rules: WatchRules) -> Iterator[Block]:
    """Yield the pictures, the alarms, and for the page the rounds."""
    if pictures := [one for one in _draw(state, rounds, rules) if one is not None]:
        section = PictureSection("Rounds", pictures)
        yield Block(section, depth=Depth.PAGE)
    if state.alarms:
        yield Block(_tabulate_alarms(state))
    if rounds:
        yield Block(_tabulate_rounds(rounds), depth=Depth.PAGE)


def _tabulate_alarms(state: State) -> DataTable:
    columns = [
        DataColumn(name, number=name == "round")
        for name in ("state", "alarm", "round", "at (UTC)", "finding")
    ]
    rows = [
        [
            DataCell("over" if alarm.over else "active", state="none" if alarm.over else "fail"),
            DataCell(alarm.name),
            DataCell(str(alarm.round), order=float(alarm.round)),
            DataCell(alarm.at[:19].replace("T", " ")),
            DataCell(alarm.told),
        ]
        for alarm in reversed(state.alarms)
    ]
    return DataTable("All alarms", columns=columns, rows=rows, caption="The latest first.")


def _tabulate_rounds(rounds: Sequence[Seen]) -> DataTable:
    names = ("round", "began (UTC)", "asked", "answered", "accuracy", "failures", "tokens")
    columns = [DataColumn(name, number=i > 1) for i, name in enumerate(names)]
    rows = []
    for seen in reversed(rounds):
        mean = _mean(seen)
        failures = sum(seen.failures.values())
        rows.append(
            [
                DataCell(str(seen.round), order=float(seen.round)),
                DataCell(seen.started_at[:19].replace("T", " ")),
                DataCell(str(len(seen.asked)), order=float(len(seen.asked))),
                DataCell(str(seen.came), order=float(seen.came)),
                DataCell("-" if mean is None else f"{mean:.1%}", order=mean),
                DataCell(str(failures), order=float(failures)),
                DataCell(f"{seen.tokens:,}", order=float(seen.tokens)),
            ]
        )
    return DataTable("All rounds", columns=columns, rows=rows, caption="The latest first.")


def _draw(state: State, rounds: Sequence[Seen], rules: WatchRules) -> Iterator[Picture | None]:
    """Yield accuracy and failures over the rounds, if any failed, and the latencies."""
    alarmed = {alarm.round for alarm in state.alarms}
    learnt = state.accuracy
    band = None
    if learnt is not None:
        floor = 100.0 * (learnt.floor - rules.tolerance)
        band = TrendBand(
            reference=100.0 * learnt.mean, threshold=floor, names=("baseline", "alarm below")
        )
    yield draw_trend(
        "Accuracy of the answers of each round",
        [
            TrendPoint(at=_time(seen), value=100.0 * mean, alarm=seen.round in alarmed)
            for seen in rounds
            if (mean := _mean(seen)) is not None
        ],
        "points",
        band,
    )
    if any(seen.came < len(seen.asked) for seen in rounds):
        yield _draw_failures(rounds, alarmed)
    latencies = [value for seen in rounds for value in seen.latencies_s]
    yield draw_distribution("Latency of answers", {"all rounds": latencies}, "s")


def _draw_failures(rounds: Sequence[Seen], alarmed: set[int]) -> Picture | None:
    points = [
        TrendPoint(
            at=_time(seen),
            value=100.0 * (1.0 - seen.came / len(seen.asked)),
            alarm=seen.round in alarmed,
        )
        for seen in rounds
        if seen.asked
    ]
    return draw_trend("Requests without an answer", points, "% of the requests")


def _time(seen: Seen) -> datetime:
    return datetime.fromisoformat(seen.started_at)


def _mean(seen: Seen) -> float | None:
    known = [value for value in seen.values if value is not None]
    return sum(known) / len(known) if known else None


def _make_suite(state: State, document: Document) -> CiSuite:
    """Return a case for each active alarm, else one that passed or that decided nothing."""
    lines = document.make_lines()
    cases = [
        CiCase(
            "watch",
            alarm.name,
            state=CiState.ERROR if alarm.kind in BROKEN else CiState.FAILURE,
            line=line,
            details=[alarm.told, f"round {alarm.round}, {alarm.at}"],
            properties={name: f"{value:g}" for name, value in alarm.figures.items()},
            in_table=True,
        )
        for alarm, line in zip(state.standing, lines, strict=False)
    ]
    return CiSuite(
        "serve-eval watch",
        cases or [_make_calm_case(state, lines[0])],
        host=document.endpoint,
    )


def _make_calm_case(state: State, line: OneLine) -> CiCase:
    known = CiState.SKIPPED if state.accuracy is None else CiState.PASSED
    return CiCase("watch", "accuracy", state=known, line=line, in_table=True)


def line(state: State, seen: Seen, rules: WatchRules) -> str:
    """Return the line that describes a round."""
    parts = [f"{seen.started_at[:19].replace('T', ' ')}  round {seen.round}", *_answers(seen)]
    if seen.checks is not None:
        counts = Counter(seen.checks.values())
        parts.append(
            "smoke "
            + ", ".join(f"{counts[name]} {name}" for name in ("PASS", "FAIL", "UNSUPPORTED"))
        )
    parts += [describe_accuracy(state, rules), *describe_probes(state, seen)]
    if seen.first_failure:
        parts.append(f"first failure: {seen.first_failure}")
    if seen.unscored:
        parts.append(
            f"the scorer failed on {seen.unscored} answers, for example {seen.first_unscored}"
        )
    return "; ".join([*parts, f"{seen.tokens} tokens"])


def _answers(seen: Seen) -> list[str]:
    """Return the number of answers and their accuracy; empty if no question was sent."""
    if not seen.asked:
        return []
    values = [value for value in seen.values if value is not None]
    mean = f", accuracy {sum(values) / len(values):.1%}" if values else ""
    failed = f" of {len(seen.asked)}" if len(values) < len(seen.asked) else ""
    return [f"{len(values)}{failed} answered{mean}"]


def describe_accuracy(state: State, rules: WatchRules) -> str:
    """Return the progress of the baseline or, once it is complete, the evidence for a fall."""
    if state.accuracy is None:
        return f"baseline {math.floor(100 * judging.learnt(state, rules))}%"
    if state.bets.get(bets.ACCURACY) is None:
        least = state.accuracy.floor - rules.tolerance
        return f"baseline complete: {state.accuracy.mean:.1%}, alarm if below {least:.1%}"
    words = [
        f"{kind} {_wealth(bets.evidence(state, kind))} of {1 / a:.0f}"
        for kind, a in bets.levels(state).items()
        if kind != bets.NUMERICS
    ]
    return f"evidence {', '.join(words)}"


def describe_probes(state: State, seen: Seen) -> list[str]:
    """Return how many probes are as the reference, and the evidence if any is not."""
    found = seen.probes
    if found is None:
        return []
    if not found.asked:
        return ["no probes were asked"]
    came = len(found.measured)
    missing = f", {len(found.asked) - came} without an answer" if came < len(found.asked) else ""
    if not came:
        why = f": {found.first_failure}" if found.first_failure else ""
        return [f"probes: none of {len(found.asked)} can be compared{why}"]
    weight = ""
    if state.probes is not None and state.probes.in_cycle.beyond:
        most = 1 / bets.levels(state)[bets.NUMERICS]
        weight = f" (evidence {_wealth(bets.evidence(state, bets.NUMERICS))} of {most:.0f})"
    return [f"{came - found.beyond} of {came} probes are like the reference{missing}{weight}"]


def say_gap(state: State, rules: WatchRules) -> str | None:
    """Return what a learnt baseline may not conclude, with the option that mends it, or None."""
    if state.accuracy is None or rules.reference is not None or not state.blocks:
        return None
    gap = bets.describe_gap(state)
    return (
        None
        if gap is None
        else f"{gap} (--set watch.baseline_hours={bets.FULL_DAY:g} covers a day)"
    )


def describe_unjudged(state: State, rules: WatchRules) -> str | None:
    """Return the last line of a watch whose baseline is incomplete, or None if it is complete."""
    if state.accuracy is not None:
        return None
    if (share := judging.learnt(state, rules)) == 1.0:
        return (
            f"Accuracy was not judged: the baseline does not cover {rules.baseline_hours:g} hours"
            " yet. Resume with the same command."
        )
    had = sum(map(len, state.answers))
    rounds = math.ceil(state.rounds * (1.0 / share - 1.0)) if share else None
    more = (
        "" if rounds is None else f" It needs about {rounds} more round{'s' if rounds > 1 else ''}."
    )
    return (
        f"Accuracy was not judged: the baseline is at {math.floor(100 * share)}% ({had} answers)."
        f"{more} Resume with the same command."
    )


def _wealth(nats: float) -> str:
    """Return evidence as a factor."""
    return f"{math.exp(nats):.3g}" if nats < 700.0 else "more than 1e300"
