"""Compare two finished runs: judge B with A as the reference.

Sides that were asked by different routes may differ for that reason alone: in the template, in
thoughts before the answer, and in how answers are counted or cut.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

import msgspec

from serve_eval.errors import PlanError
from serve_eval.evaluation import deployment
from serve_eval.evaluation.capabilities.sampling import (
    SideSampling,
    compare_defaults,
    describe_left,
    find_unlike_policies,
)
from serve_eval.evidence import answer_pairs
from serve_eval.evidence.answer_pairs import (
    TaskAnswers,
    agree_in_all,
    find_all_changes,
    find_prompt,
    find_text_places,
    list_flips,
    pair_own,
    pair_runs,
)
from serve_eval.evidence.path_proof import apply_path
from serve_eval.evidence.score_pairs import keep_asked, keep_common
from serve_eval.evidence.self_flips import (
    UNMEASURED,
    compare_repeats,
    conclusion,
    evidence,
    self_flips,
)
from serve_eval.frozen import freeze_places
from serve_eval.plugins.values import load_verdict_rule, rules_with_pairs
from serve_eval.protocol.shared import build_task
from serve_eval.schema import (
    CHAT_ROUTES,
    Agreement,
    ComparedSide,
    ComparedTask,
    Comparison,
    Divergence,
    PathFinding,
    Plan,
    Report,
    Response,
    SelfFlips,
    Spec,
)
from serve_eval.schema.task import REQUESTS
from serve_eval.storage import journal
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.report_file import read_report
from serve_eval.storage.sessions import read_sessions
from serve_eval.storage.story_files import COMPARE
from serve_eval.verdicts import many_tests
from serve_eval.verdicts.exit_code import code_of_rehearsal, exit_code, withhold
from serve_eval.verdicts.repaired import read_policy
from serve_eval.workflows.compare.changed import compare_answers, judge_answers
from serve_eval.workflows.compare.divergence import find_places
from serve_eval.workflows.compare.exact import (
    Second,
    compare_tokens,
    describe_asked,
    describe_unsteady,
    keep_like,
    read_twice,
)
from serve_eval.workflows.compare.judging import (
    judge_sides,
    leave_open,
    more_failures,
    slower,
    uneven,
)

APART_S = 60.0
"""Seconds between two requests for a prompt beyond which they were not sent under the same load."""
Prompt = tuple[str, str]
"""A prompt, by task and id."""


@freeze_places
class Looked:
    """The results of asking again: the divergences of flips, and the tokens of partings."""

    flips: Mapping[Prompt, Divergence] = field(default_factory=dict)
    tokens: Mapping[Prompt, int] = field(default_factory=dict)


def check_rule(rule: Spec) -> None:
    """Raise PlanError for a rule that does not compare pairs, or for invalid options."""
    judging = load_verdict_rule(rule.name)
    if not judging.needs_pairs:
        raise PlanError(
            f"--verdict: {rule.name} does not compare pairs",
            hint=f"Use one of {', '.join(rules_with_pairs())}.",
        )
    options = judging.check_options(rule.options)
    try:
        read_policy(rule.options)
        if judging.check is not None:
            judging.check(**options)
    except PlanError as error:
        raise PlanError([f"verdict{problem}" for problem in error.problems]) from error


def reference_runs_needed(rule: Spec) -> int:
    """Return the least number of runs of A that the rule needs to decide anything."""
    return load_verdict_rule(rule.name).min_reference_runs


def compare_folders(
    a: Path,
    b: Path,
    rule: Spec,
    *,
    again: Mapping[str, Path] | None = None,
    show_flips: int = 0,
    looked: Looked | None = None,
    hidden: frozenset[Prompt] = frozenset(),
    strict: bool = False,
) -> Comparison:
    """Compare two run folders.

    `again` has the folders with the second answers of A and of B, if they were asked some prompts
    twice. For a task without second answers, the repeats within a run are used. Flips of `hidden`
    prompts are counted but not listed. Raises RunFolderError.
    """
    reports = read_report(a), read_report(b)
    second = {side: (folder, read_report(folder)) for side, folder in (again or {}).items()}
    busy = max(
        filter(None, (load.cores_busy for one in reports for load in one.loads)), default=None
    )
    tasks, doubled = [], []
    for task in reports[0].tasks:
        name = task.result.task
        first, other = (
            answer_pairs.read_task(folder, report, name)
            for folder, report in zip((a, b), reports, strict=True)
        )
        asked = first.planned, other.planned
        first, other, common = keep_common(*keep_asked(first, other))
        sides = first, other
        twice = read_twice(sides, second)
        doubled.append((sides, twice))
        seen = looked or Looked()
        compared = _task(reports[0].plan, sides, rule, twice, show_flips, seen, hidden, busy)
        if first.task.spec.name == REQUESTS and compared.exact is None:
            compared = _judge_requests(compared, sides, twice, len(reports[0].tasks))
        tasks.append(_note_common(compared, common, asked))
    corrected = many_tests.correct([task.verdict for task in tasks], "comparison")
    tasks = [replace(task, verdict=one) for task, one in zip(tasks, corrected, strict=True)]
    path = [
        one for name, report in zip("AB", reports, strict=True) for one in _read_path(name, report)
    ]
    tasks = [replace(task, verdict=apply_path(task.verdict, path)) for task in tasks]
    code = exit_code([task.verdict for task in tasks], strict=strict)
    rehearsal = any(report.rehearsal for report in reports)
    if rehearsal:
        code = code_of_rehearsal(
            [(one, task.verdict) for task in tasks for one in (task.a, task.b)]
        )
        tasks = [replace(task, verdict=withhold(task.verdict)) for task in tasks]
    warnings = _first_tokens(reports[0])
    unlike = find_unlike_policies(*map(SideSampling.of_report, reports))
    differs = [*filter(None, [compare_defaults(*reports)]), *describe_left(*reports)]
    differs += () if unlike is None else [f"mismatch allowed: {line}" for line in unlike.told]
    differs += describe_routes((a, reports[0]), (b, reports[1]))
    asked_of = {
        name: describe_asked(folder, report, len(read_sessions(folder)))
        for name, folder, report in zip("AB", (a, b), reports, strict=True)
    }
    shown = [
        _side(folder, report, warnings) for folder, report in zip((a, b), reports, strict=True)
    ]
    return Comparison(
        schema_version=COMPARE.version,
        rehearsal=rehearsal,
        model=shown[1].model,
        a=shown[0],
        b=shown[1],
        rule=rule,
        tasks=tuple(tasks),
        exit_code=code,
        started_at=reports[1].started_at,
        wall_s=0.0,
        warnings=(*warnings, *differs, *describe_unsteady(doubled, asked_of)),
    )


def _judge_requests(
    task: ComparedTask, sides: tuple[TaskAnswers, TaskAnswers], twice: Mapping[str, Second], n: int
) -> ComparedTask:
    """Return a task of recorded requests, judged by their answers alone: one test decides."""
    changed = compare_answers(*sides, twice, tests=n)
    verdict = leave_open(judge_answers(*sides, changed), *sides, exact=False)
    kept = (line for line in task.warnings if not line.startswith("more_flips: "))
    return replace(task, changed=changed, verdict=verdict, warnings=tuple(kept))


def _note_common(task: ComparedTask, common: int, asked: tuple[int, int]) -> ComparedTask:
    """Return a task with a warning if the sides have only some prompts in common."""
    if asked == (common, common):
        return task
    warning = (
        f"common_prompts: the figures are of the {common} prompts that both asked, of {asked[0]} of"
        f" A and {asked[1]} of B"
    )
    return replace(task, warnings=(warning, *task.warnings))


def _read_path(side: str, report: Report) -> list[PathFinding]:
    """Return the findings about the path of a side, with its letter."""
    return [msgspec.structs.replace(one, evidence=f"{side}: {one.evidence}") for one in report.path]


def _first_tokens(report: Report) -> tuple[str, ...]:
    """Return a warning if no answer is longer than what a context server generates alone."""
    line = deployment.first_tokens(
        build_task(task.spec, f"tasks.{task.result.task}") for task in report.tasks
    )
    return () if line is None else (line,)


def _side(folder: Path, report: Report, said: Sequence[str]) -> ComparedSide:
    load = report.loads[-1] if report.loads else None
    return ComparedSide(
        folder=str(folder),
        model=report.plan.model,
        base_url=report.endpoint.base_url,
        version=report.endpoint.info.version,
        per_second=load.finished / load.wall_s if load is not None and load.wall_s else None,
        servers=deployment.describe(report.endpoint.info),
        hidden_retries=dict(_count_hidden_retries(folder)),
        warnings=tuple(line for line in report.warnings if line not in said),
        lateness=None if load is None else load.lateness,
    )


def _count_hidden_retries(folder: Path) -> Counter[str]:
    """Return the retries that an orchestrator made to its servers, over all sessions.

    Kinds without retries have zeros.
    """
    found: Counter[str] = Counter()
    for session in read_sessions(folder):
        found.update(session.endpoint.info.hidden_retries or {})
    return found


def _task(
    plan: Plan,
    sides: tuple[TaskAnswers, TaskAnswers],
    rule: Spec,
    twice: Mapping[str, Second],
    show: int,
    looked: Looked,
    hidden: frozenset[Prompt],
    cores_busy: float | None,
) -> ComparedTask:
    a, b = sides
    worse, better = find_all_changes(a, b)
    name = a.task.result.task
    secrets = frozenset(prompt for task, prompt in hidden if task == name)
    shown = [one for one in (*worse, *better) if find_prompt(a, one) not in secrets]
    flips = list_flips(a, b, shown[:show])
    apart = answer_pairs.apart_s(a, b)
    said = [had.task.verdict.warnings for had in sides]
    warnings = [f"{'A and B' if line in said[1] else 'A'}: {line}" for line in said[0]]
    warnings += [f"B: {line}" for line in said[1] if line not in said[0]]
    if secret := len(worse) + len(better) - len(shown):
        warnings.append(f"{secret} flips belong to a hold-out set and are not listed")
    if apart is not None and apart > APART_S:
        warnings.append(
            f"the two requests for a prompt are {apart:.0f} s apart (median): not under the same"
            " load"
        )
    elif apart is not None:
        warnings += filter(None, (slower(a, b, cores_busy), uneven(a, b)))
    warnings += filter(None, [more_failures(a, b)])
    listed = tuple(replace(flip, divergence=looked.flips.get((name, flip.id))) for flip in flips)
    exact = None
    if load_verdict_rule(rule.name).needs_texts:
        placed = {prompt: token for (task, prompt), token in looked.tokens.items() if task == name}
        exact = compare_tokens(a, b, twice, placed=placed, hidden=secrets, show=show)
    itself, like = _itself(a, b, twice), keep_like(twice)
    if itself is not None and itself.more:
        warnings.append(f"more_flips: {evidence(itself)}: {conclusion(itself)}")
    return ComparedTask(
        task=name,
        a=a.task.result,
        b=b.task.result,
        traffic=(a.task.traffic, b.task.traffic),
        verdict=judge_sides(plan, a, b, rule, exact),
        worse=len(worse),
        better=len(better),
        agreement=agree_in_all(a, b, pair_runs(a, b)),
        apart_s=apart,
        itself=itself,
        unmeasured=UNMEASURED if itself is None and twice else "",
        flips=listed,
        warnings=tuple(warnings),
        attributions=(a.task.attribution, b.task.attribution),
        own=(_own(a, like.get("A")), _own(b, like.get("B"))),
        places=find_places(listed),
        text_places=find_text_places(a, b),
        exact=None if exact is None else exact.equality,
    )


def _itself(a: TaskAnswers, b: TaskAnswers, twice: Mapping[str, Second]) -> SelfFlips | None:
    """Compare how an endpoint differs from itself with how the two endpoints differ.

    The endpoint is A, or B if only B answered twice.
    """
    for name, once, other in (("A", a, b), ("B", b, a)):
        second = twice.get(name)
        if second is not None and second.noise:
            if second.answers is None:
                return compare_repeats(name, once, other)
            return self_flips(name, once, second.answers, other)
    return None


def _own(once: TaskAnswers, second: Second | None) -> Agreement | None:
    """Return how far the answers of a side agree with its second ones, or its repeats."""
    if second is None or not second.noise:
        return None
    if second.answers is None:
        return agree_in_all(once, once, pair_own(once))
    return answer_pairs.agreement(once, second.answers)


_Answers = Mapping[str, Response]


def describe_routes(a: tuple[Path, Report], b: tuple[Path, Report]) -> Iterator[str]:
    """Yield a warning for each difference, if the chat prompts of both sides had other routes."""
    here, there = (CHAT_ROUTES[report.plan.connection.route] for _, report in (a, b))
    if here is there:
        return
    yield f"route: A was asked by /v1{here}, and B by /v1{there}"
    yield from _compare_unknown(a[1], b[1])
    names = [task.result.task for task in a[1].tasks]
    others = {task.result.task for task in b[1].tasks}
    for name in (name for name in names if name in others):
        first, other = (_read(folder, name) for folder, _ in (a, b))
        common = [one for one in first if one in other]
        pairs = [(first[one], other[one]) for one in common]
        if pairs:
            yield from (f"route, {name}: {line}" for line in _differences(pairs))


def _compare_unknown(a: Report, b: Report) -> Iterator[str]:
    """Yield why the sampling defaults of one side alone are not known."""
    why = [one.sampling_defaults and one.sampling_defaults.unknown for one in (a, b)]
    for name, reason, other in (("A", *why), ("B", *reversed(why))):
        if reason and other is not None and not other:
            yield f"route: the sampling defaults of {name} are not known: {reason}"


def _read(folder: Path, task: str) -> _Answers:
    """Return the answers of a task by sample; repeats are samples of their own."""
    records = journal.read(samples_file(folder, task))
    return {one.id: one.response for one in records if one.response is not None}


def _differences(pairs: list[tuple[Response, Response]]) -> Iterator[str]:
    spaces = sum(x.text != y.text and x.text.strip() == y.text.strip() for x, y in pairs)
    if spaces:
        yield f"spaces: {spaces} of {len(pairs)} texts differ only in spaces at their ends"
    yield from _compare_prompts(pairs)
    thinking = [sum(bool(one.reasoning) for one in side) for side in zip(*pairs, strict=True)]
    if thinking[0] != thinking[1]:
        yield f"thoughts: {thinking[0]} of {len(pairs)} answers of A have some, {thinking[1]} of B"
    cut = [sum(one.truncated for one in side) for side in zip(*pairs, strict=True)]
    if cut[0] != cut[1]:
        yield f"cut answers: {cut[0]} of {len(pairs)} of A, {cut[1]} of B"


def _compare_prompts(pairs: list[tuple[Response, Response]]) -> Iterator[str]:
    """Yield what the token counts of the same prompts say of the templates of both routes."""
    counts = [(x.usage.prompt_tokens, y.usage.prompt_tokens) for x, y in pairs]
    silent = [
        name for name, side in zip("AB", zip(*counts, strict=True), strict=True) if not any(side)
    ]
    if silent:
        yield f"counts: {' and '.join(silent)} counts no tokens, so templates are not compared"
        return
    more = [there - here for here, there in counts if here and there]
    if unlike := sum(one != 0 for one in more):
        median = statistics.median(more)
        yield (
            f"template: {unlike} of {len(more)} prompts have other token counts, B {median:+g} at"
            " the median"
        )
