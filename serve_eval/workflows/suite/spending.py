"""Bound the tokens and the time of a whole suite, and add up what its runs cost.

The runs are asked one after another, so that the suite spends one sum in their order: each run may
cost what the others have left. A run that finds nothing left is not asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.schema import TIME, TOKENS, Plan, RunCost, Suite, SuiteRun
from serve_eval.storage.file_names import SUITE_RUNS
from serve_eval.storage.report_file import read_report
from serve_eval.storage.run_folder import holds_run
from serve_eval.storage.sessions import read_sessions


def bound_run(suite: Suite, run: SuiteRun, folder: Path) -> tuple[Plan, str]:
    """Return the plan of a run with what the suite has left for it, or why it is not asked.

    A run that has answers already is not refused: it keeps them, and asks what it still may.
    """
    if suite.max_tokens_total is None and suite.max_time_s is None:
        return run.plan, ""
    others = [_read_spent(folder / SUITE_RUNS / one.name) for one in suite.runs if one is not run]
    limits, begun = run.plan.limits, holds_run(folder / SUITE_RUNS / run.name)
    if suite.max_tokens_total is not None:
        tokens = suite.max_tokens_total - sum(spent for spent, _ in others)
        if tokens < 1 and not begun:
            told = f"the suite has spent its {suite.max_tokens_total:,} tokens"
            return run.plan, f"{TOKENS}: not asked, since {told}"
        own = limits.max_tokens_total
        tokens = max(1, tokens)
        limits = replace(limits, max_tokens_total=tokens if own is None else min(own, tokens))
    if suite.max_time_s is not None:
        time_s = suite.max_time_s - sum(spent_s for _, spent_s in others)
        if time_s <= 0.0 and not begun:
            told = f"the suite has spent its {suite.max_time_s:,g} s"
            return run.plan, f"{TIME}: not asked, since {told}"
        own_s = limits.max_time_s
        time_s = max(0.001, time_s)
        limits = replace(limits, max_time_s=time_s if own_s is None else min(own_s, time_s))
    return replace(run.plan, limits=limits), ""


def _read_spent(run: Path) -> tuple[int, float]:
    """Return the tokens and the seconds of asking that a run cost so far, in all sessions."""
    with suppress(RunFolderError):
        loads = [one.load for one in read_sessions(run) if one.load is not None]
        tokens = sum(load.charged_tokens for load in loads)
        with suppress(RunFolderError):
            if (cost := read_report(run).cost) is not None:
                tokens = max(tokens, cost.prompt_tokens + cost.generated_tokens)
        return tokens, sum(load.wall_s for load in loads)
    return 0, 0.0


def add_costs(found: Iterable[RunCost | None]) -> RunCost | None:
    """Return what runs cost together; None if that of one is not known, or if there is none.

    GPU seconds are known if those of all runs are.
    """
    costs = [one for one in found if one is not None]
    if not costs:
        return None
    return RunCost(
        prompt_tokens=sum(one.prompt_tokens for one in costs),
        generated_tokens=sum(one.generated_tokens for one in costs),
        without_usage=sum(one.without_usage for one in costs),
        uncounted_attempts=sum(one.uncounted_attempts for one in costs),
        judge_tokens=sum(one.judge_tokens for one in costs),
        probe_tokens=sum(one.probe_tokens for one in costs),
        served_s=_add([one.served_s for one in costs]),
        gpu_s=_add([one.gpu_s for one in costs]),
    )


def _add(found: Sequence[float | None]) -> float | None:
    known = [one for one in found if one is not None]
    return round(sum(known), 3) if len(known) == len(found) else None
