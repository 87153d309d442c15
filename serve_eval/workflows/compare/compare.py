"""Compare two endpoints: ask both the same prompts at once, and judge B with A as the reference.

Either side can also be a finished run, which is not asked again. A comparison folder contains:

compare.json      what is compared, by which rule and margin: fixed before the first request
order.json        the seed of the random order in which both are asked
a/, b/            ordinary run folders
again/            the second answers of A, or of B if A is a finished run
again_b/          the second answers of B, if A has some too
servers/          logs of launched servers
comparison.json   the result
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from serve_eval.evaluation.run_cost import describe_spent
from serve_eval.evaluation.run_session import Stopwatch, find_last_answer, ignore, write_warning
from serve_eval.frozen import freeze
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import Comparison, Progress
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import SIDE_A, SIDE_B
from serve_eval.storage.story_files import COMPARE
from serve_eval.workflows.compare.asking import ask_runs, ask_twice, find_spent
from serve_eval.workflows.compare.sides import (
    SELF,
    CompareRules,
    CompareSide,
    ComparisonSession,
    PolicyCheck,
    SideRun,
    bind_folder,
    check_alike,
    expect_scores,
    list_hidden_prompts,
    prepare_sides,
    share_order,
)
from serve_eval.workflows.compare.verdict import Looked, check_rule, compare_folders

__all__ = ["SELF", "SHOW_FLIPS", "CompareRules", "CompareSide", "compare"]

SHOW_FLIPS = 20
"""Default number of flips that are listed and examined."""


@with_scope
async def compare(
    a: CompareSide,
    b: CompareSide,
    rules: CompareRules,
    out_dir: Path,
    *,
    show_flips: int = SHOW_FLIPS,
    one_after_the_other: bool = False,
    strict: bool = False,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
    notify: Callable[[str], None] = ignore,
) -> Comparison:
    """Ask what is left to ask, compare, and write comparison.json.

    Both endpoints receive each prompt at the same time, with A's limits, seed and repeats. With
    `one_after_the_other`, or if the GPUs cannot hold the servers of both, A is asked first and then
    B. `strict` makes an undecided comparison fail.

    Raises NotComparableError, with the fields, if the sides ask differently; RunFolderError for the
    folder of another comparison; and ServeEvalError for what stops a run. The folder then keeps the
    answers so far.
    """
    clock = Stopwatch()
    check_rule(rules.rule)
    session = ComparisonSession(
        out_dir=out_dir,
        environ=environ,
        notify=notify,
        progress=progress,
        policies=PolicyCheck(rules.allow_mismatch),
    )
    runs = await prepare_sides(a, b, session)
    check_alike(a, b, runs, rules)
    for name, side in (("A", a), ("B", b)):
        if side.folder is not None:
            session.policies.note_folder(name, side.folder)
    with run_folder.hold(out_dir, COMPARE.plan, "comparison"):
        bind_folder(out_dir, a, b, rules)
        runs = share_order(runs, session)
        for run in (run for run in runs if run.done):
            session.policies.note_folder(run.side, run.folder)
        looked = _read_looked_at(out_dir)
        twice = ask_twice(runs, rules, out_dir)
        runs = _all_runs(a, runs, twice)
        pair = _Pair(
            a=a,
            b=b,
            rules=rules,
            out_dir=out_dir,
            twice=twice,
            hidden=list_hidden_prompts(a, runs),
            strict=strict,
        )
        COMPARE.drop(out_dir)
        old = _list_old_answers(runs)
        unseen = looked is None and show_flips > 0 and len({run.side for run in runs}) == 2
        if not unseen and (limit := find_spent(runs)):
            old = [describe_spent(runs[0].plan.limits, limit)]
            notify(f"warning: {old[0]}")
        elif unseen or not all(run.done for run in runs):
            result = partial(pair.result, show_flips, looked) if show_flips else None
            looked = await ask_runs(runs, session, result, apart=one_after_the_other)
        found = pair.result(show_flips, looked)
        comparison = replace(
            found,
            warnings=(*old, *found.warnings),
            started_at=clock.started_at,
            wall_s=clock.wall_s,
        )
        COMPARE.write(out_dir, comparison)
    return comparison


@freeze
class _Pair:
    """Two sides whose answers can be compared at any time.

    `twice` are the runs with the second answers of the live sides. The texts of `hidden` prompts
    are not shown.
    """

    a: CompareSide
    b: CompareSide
    rules: CompareRules
    out_dir: Path
    twice: Sequence[SideRun]
    hidden: frozenset[tuple[str, str]]
    strict: bool

    def result(self, show_flips: int, looked: Looked | None) -> Comparison:
        """Compare the answers so far. `looked` holds what asking again has shown."""
        return compare_folders(
            self.a.folder or self.out_dir / SIDE_A,
            self.b.folder or self.out_dir / SIDE_B,
            self.rules.rule,
            again={run.side: run.folder for run in self.twice},
            show_flips=show_flips,
            looked=looked,
            hidden=self.hidden,
            strict=self.strict,
        )


def _all_runs(a: CompareSide, runs: Sequence[SideRun], twice: Sequence[SideRun]) -> list[SideRun]:
    """Return the runs that are asked, with the second answers.

    If A is a finished run, each of them expects its scores.
    """
    every = [*runs, *twice]
    if a.folder is None:
        return every
    return [replace(run, prepared=expect_scores(a.folder, run.prepared)) for run in every]


def _list_old_answers(runs: Sequence[SideRun]) -> list[str]:
    """Return a warning if the folder has every answer already; finished runs are never asked."""
    if not runs or not all(run.done for run in runs):
        return []
    at = find_last_answer(run.folder for run in runs)
    return [write_warning(at, "name another folder")] if at else []


def _read_looked_at(out_dir: Path) -> Looked | None:
    """Return what an earlier session examined; None if no session finished."""
    if (earlier := COMPARE.find(out_dir, Comparison)) is None:
        return None
    return Looked(
        flips={
            (t.task, flip.id): flip.divergence
            for t in earlier.tasks
            for flip in t.flips
            if flip.divergence
        },
        tokens={
            (t.task, prompt): one.token
            for t in earlier.tasks
            for prompt, one in ({} if t.exact is None else t.exact.partings).items()
            if one.token is not None
        },
    )
