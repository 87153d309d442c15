"""Judge at which loads an endpoint is broken, with tests corrected for all loads and tasks.

Each load is paired with the lowest one. On a sound server another batch size may change answers,
but it corrects a wrong one as often as it spoils a right one. So a load is accused only if more
scores fell than rose, or more rose than fell: then the lowest load is the broken one. The test is
McNemar's, exact and two-sided, and thus needs no assumption about which loads share their numerics.
Prompts that share a group, such as a passage, are one unit of it.

Cochran's Q over all loads does need one: that all pairs of loads are equally alike. If some loads
share their numerics and others do not, Q accuses a sound server too often. So Q alone accuses of
nothing; it must agree with an accusation.

The load asked first is asked again at the end. If its scores changed, or may well have, no load is
accused, since a loss at one load may be one over time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from serve_eval.evidence.answer_pairs import TaskAnswers, find_changes
from serve_eval.evidence.score_pairs import list_groups
from serve_eval.evidence.self_flips import NOTHING, name_loads
from serve_eval.frozen import freeze, freeze_places
from serve_eval.schema import LoadOutcome, LoadPoint, LoadTask, LoadTime
from serve_eval.stats.clusters import two_sided_p
from serve_eval.stats.multiplicity import holm
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, PASS, UNDECIDED

ALPHA = 0.01
"""Chance of accusing a sound endpoint of anything, over all loads and tasks."""
FAILURE_ALPHA = 0.002
"""The part of ALPHA for requests that fail more often at one load than at another."""
SCORE_ALPHA = ALPHA - FAILURE_ALPHA
"""The part of ALPHA for scores, and for a change over time."""
DOUBT = 0.05
"""Level at which a change over time is possible enough to accuse no load, and at which a further
load is called likely once another one is proved."""
MANY = 0.05
"""Least share of the prompts that must fail before a load is named for it."""
FEWEST = 30
"""Least number of prompts with a score at two loads for a result other than inconclusive."""

TaskPasses = Mapping[int, TaskAnswers]
"""The answers to one task by load; a load that was given up is missing."""


@freeze
class LoadData:
    """The answers to one task: by load, and those of the repeat of the load asked first."""

    loads: tuple[int, ...]
    answers: TaskPasses
    first: int
    again: TaskAnswers | None


@freeze_places
class Changes:
    """The numbers of prompts that changed in each direction, and their exact two-sided p.

    Prompts that share a group, such as a passage, count as one change, in the direction of most of
    them.
    """

    down: int
    up: int
    p: float


def weigh_changes(down: Collection[str], up: Collection[str], *sides: TaskAnswers) -> Changes:
    """Return the changes of these prompts, whose groups the scores of the sides know."""
    changed = [*down, *up]
    names = list_groups(changed, *sides)
    signs = [-1] * len(down) + [1] * len(up)
    return Changes(len(down), len(up), two_sided_p(signs, names))


def count_changes(a: TaskAnswers, b: TaskAnswers) -> Changes:
    """Return the scores that fell and rose from A to B."""
    return weigh_changes(*find_changes(a, b), a, b)


def judge_tasks(
    data: Mapping[str, LoadData], points: Mapping[str, Sequence[LoadPoint]]
) -> tuple[LoadTask, ...]:
    """Judge every task, given its points without p-values that are corrected."""
    others = [
        (task, point) for task, found in points.items() for point in found if _is_tested(point)
    ]
    times = {task: time for task, one in data.items() if (time := _compare_times(one)) is not None}
    corrected = holm([*(point.p for _, point in others), *(time.p for time in times.values())])
    scores = {(task, point.load): p for (task, point), p in zip(others, corrected, strict=False)}
    times = {
        task: replace(time, p_holm=p, changed=p <= SCORE_ALPHA)
        for (task, time), p in zip(times.items(), corrected[len(others) :], strict=True)
    }
    failures = dict(zip(scores, holm([point.p_failures for _, point in others]), strict=True))
    return tuple(
        _judge_task(
            task,
            data[task],
            [
                replace(
                    point,
                    p_holm=scores.get((task, point.load), 1.0),
                    p_failures=failures.get((task, point.load), 1.0),
                )
                for point in found
            ],
            times.get(task),
        )
        for task, found in points.items()
    )


def _is_tested(point: LoadPoint) -> bool:
    return point.outcome not in ("lowest", "gave up")


def _compare_times(data: LoadData) -> LoadTime | None:
    if data.again is None or data.first not in data.answers:
        return None
    found = count_changes(data.answers[data.first], data.again)
    return LoadTime(
        load=data.first,
        lost=found.down,
        won=found.up,
        p=found.p,
        p_holm=found.p,
        changed=False,
        doubtful=found.p <= DOUBT,
    )


def _judge_task(
    task: str, data: LoadData, points: Sequence[LoadPoint], time: LoadTime | None
) -> LoadTask:
    q, df, q_p = _cochran(data)
    failing, failing_words = _name_failing(points)
    suspected = q_p is None or q_p <= ALPHA
    proved = [
        point for point in points if suspected and _is_tested(point) and point.p_holm <= SCORE_ALPHA
    ]
    outcomes: dict[int, LoadOutcome] = {}
    broken: tuple[int, ...] = ()
    words = NOTHING
    if proved:
        outcomes, broken, words = _name_broken(data, points, proved)
    if broken and time is not None and (time.changed or time.doubtful):
        broken, words = (), f"{_say_time(time)}, so that no load is accused ({words})"
    elif time is not None and time.changed:
        words = _say_time(time)
    elif words == NOTHING and (unfinished := describe_unfinished(data.answers)):
        words = unfinished
    said = [words] if words != NOTHING or not failing else []
    return LoadTask(
        task=task,
        points=tuple(_with_outcome(point, outcomes, failing) for point in points),
        q=q,
        df=df,
        q_p=q_p,
        time=time,
        broken=broken,
        failing=failing,
        words="; ".join([*said, *([failing_words] if failing else [])]),
    )


def describe_unfinished(answers: TaskPasses) -> str:
    """Return that most answers were cut within thoughts, so that they show nothing; else empty."""
    results = [one.task.result for one in answers.values()]
    cut, scored = sum(one.cut_in_thoughts for one in results), sum(one.scored for one in results)
    if 2 * cut < scored or not scored:
        return ""
    return (
        f"not judged: {cut} of {scored} answers were cut within the model's thoughts: raise"
        " max_tokens, or switch thinking off"
    )


def _say_time(time: LoadTime) -> str:
    what = "changed" if time.changed else "may have changed"
    return (
        f"{what} over time: at {time.load} in flight, {time.lost} scores fell and {time.won} rose"
        f" from the first asking to the last (p = {time.p:.2g})"
    )


def _with_outcome(
    point: LoadPoint, outcomes: Mapping[int, LoadOutcome], failing: Sequence[int]
) -> LoadPoint:
    if point.outcome == "gave up" or (point.load in failing and point.load not in outcomes):
        return point if point.outcome == "gave up" else replace(point, outcome="fails")
    return replace(point, outcome=outcomes.get(point.load, point.outcome))


def _name_failing(points: Sequence[LoadPoint]) -> tuple[tuple[int, ...], str]:
    """Return the loads whose requests fail more often than others', and words for them."""
    tested = [p for p in points if _is_tested(p) and p.p_failures <= FAILURE_ALPHA]
    fewer = {p.load for p in tested if p.failed_less > p.failed_more}
    more = {
        p.load
        for p in tested
        if p.failed_more > p.failed_less and p.failed >= MANY * (p.failed + p.scored)
    }
    lowest = [p for p in points if p.outcome == "lowest"]
    if fewer and any(p.failed >= MANY * (p.failed + p.scored) for p in lowest):
        # The lowest load fails, and so does every load that is no better.
        more = {p.load for p in points if p.load not in fewer}
    bad = more | {p.load for p in points if p.outcome == "gave up"}
    loads = [p.load for p in points]
    return tuple(sorted(bad)), name_loads(loads, bad, what="requests fail")


def _name_broken(
    data: LoadData, points: Sequence[LoadPoint], proved: Sequence[LoadPoint]
) -> tuple[dict[int, LoadOutcome], tuple[int, ...], str]:
    """Return the outcome of each load, the broken loads, and words for them.

    The other loads are sorted by raw p-values. A load is bad if it differs from the lowest in the
    same direction as the strongest proof, and good if it differs from that proof. One that does
    neither is not decided.
    """
    strongest = min(proved, key=lambda point: point.p)
    rises = strongest.won > strongest.lost
    outcomes: dict[int, LoadOutcome] = {}
    unlike, like, unclear = set[int](), set[int](), set[int]()
    for point in points:
        if not _is_tested(point):
            continue
        same_way = (point.won > point.lost) == rises
        if point in proved:
            outcomes[point.load] = "better" if point.won > point.lost else "worse"
            (unlike if same_way else like).add(point.load)
        elif point.p <= DOUBT and same_way:
            outcomes[point.load] = "likely better" if rises else "likely worse"
            unlike.add(point.load)
        elif _is_apart(data, point.load, strongest.load, rises=rises):
            like.add(point.load)
        else:
            unclear.add(point.load)
    like |= {point.load for point in points if point.outcome == "lowest"}
    likely = {load for load, outcome in outcomes.items() if outcome.startswith("likely")}
    bad = like if rises else unlike
    loads = [load for load in data.loads if load in data.answers]
    words = name_loads(loads, bad, likely=likely & bad, unclear=unclear)
    return outcomes, tuple(sorted(bad)), words


def _is_apart(data: LoadData, load: int, proof: int, *, rises: bool) -> bool:
    """Return True if the load that was proved to differ also differs from this one."""
    found = count_changes(data.answers[load], data.answers[proof])
    return found.p <= DOUBT and (found.up > found.down) == rises


def _cochran(data: LoadData) -> tuple[float | None, int, float | None]:
    """Return Q over the loads that answered most prompts, its degrees of freedom and its p."""
    from serve_eval.stats.repeats import instability

    most = max((len(one.lines[0]) for one in data.answers.values()), default=0)
    full = [one.lines[0] for one in data.answers.values() if len(one.lines[0]) * 2 >= most > 0]
    prompts = [p for p in full[0] if all(p in lines for lines in full)] if full else []
    if len(full) < 2 or not prompts:
        return None, max(0, len(full) - 1), None
    found = instability([[lines[p].value for p in prompts] for lines in full])
    return found.cochran_q, found.df, found.p


def find_exit_code(tasks: Sequence[LoadTask]) -> int:
    """Return 1 if a load is broken, 3 if nothing can be concluded, 5 without scores, else 0."""
    if any(task.broken or task.failing for task in tasks):
        return FAIL
    if not any(point.scored for task in tasks for point in task.points):
        return NOTHING_SCORED
    if any(is_inconclusive(task) for task in tasks):
        return UNDECIDED
    return PASS


def is_inconclusive(task: LoadTask) -> bool:
    """Return True if a task has too few answers at a load, or changed over time."""
    if task.time is not None and task.time.changed:
        return True
    few = any(point.paired < FEWEST for point in task.points if _is_tested(point))
    return few or task.words != NOTHING
