"""Prepare the sides of a comparison, check that they ask the same, and bind them to a folder.

What a server adds is known only once it is probed, so this difference of the protocol is found
after the plans were compared: before the first sample of the side that is probed last.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import NotComparableError, PlanError
from serve_eval.evaluation.capabilities.sampling import SideSampling, find_unlike_policies
from serve_eval.evaluation.launch import check_launcher, with_model
from serve_eval.evaluation.open_tasks import refuse_identical
from serve_eval.evaluation.preflight import check_pair_margins
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.prompt_lengths import keep_lengths
from serve_eval.evaluation.settle import settle
from serve_eval.evidence.answer_pairs import read_task
from serve_eval.evidence.score_pairs import CHOICE
from serve_eval.frozen import freeze, freeze_places
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins import extensions
from serve_eval.protocol.sampling_fields import SERVER_ADDS
from serve_eval.schema import HOLDOUT, Plan, Progress, SamplingDefaults, Spec, Task, is_mutable
from serve_eval.schema.base_url import list_servers
from serve_eval.storage import order_seed, run_folder
from serve_eval.storage.json_files import refuse_other
from serve_eval.storage.report_file import has_report, read_report
from serve_eval.storage.story_files import COMPARE
from serve_eval.verdicts.below_reference import estimate_expected
from serve_eval.workflows.compare.verdict import reference_runs_needed

SELF = 200
"""Default number of prompts that each endpoint is asked twice."""


@freeze_places
class CompareSide:
    """A side of the comparison: the run in `folder`, or if None, the run that `plan` gives."""

    plan: Plan
    _: KW_ONLY
    folder: Path | None = None


@freeze_places
class CompareRules:
    """The rules of a comparison, fixed before the first request.

    `rule` is the verdict rule and `again` the number of prompts that are asked twice. Protocol
    fields in `allow_mismatch` may differ between the sides.
    """

    rule: Spec
    _: KW_ONLY
    again: int = SELF
    allow_mismatch: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SideRun:
    """A run of the comparison: a plan with its model, and a run folder.

    `side` is A or B, also for second answers. `seed` is that of the random order, known once the
    folder is held.
    """

    side: str
    plan: Plan
    prepared: Sequence[PreparedTask]
    folder: Path
    label: str
    seed: int | None = None

    @property
    def done(self) -> bool:
        """True if every sample has an answer."""
        if not has_report(self.folder):
            return False
        tasks = read_report(self.folder).tasks
        return not any(one.result.failed or one.verdict.budget is not None for one in tasks)


@freeze
class ComparisonSession:
    """The values that all runs of a comparison share. `policies` knows how each side samples."""

    out_dir: Path
    environ: Mapping[str, str]
    notify: Callable[[str], None]
    progress: Progress | None
    policies: PolicyCheck


async def prepare_sides(
    a: CompareSide, b: CompareSide, session: ComparisonSession
) -> list[SideRun]:
    """Prepare the sides that are asked."""
    runs: list[SideRun] = []
    for side in (a, b):
        if side.folder is not None:
            refuse_identical(side.folder)
    known = next((side.plan for side in (a, b) if side.folder is not None), None)
    for name, side in (("A", a), ("B", b)):
        if side.folder is None:
            plan = _plan_of(side.plan, a if name == "B" and a.folder is None else None)
            plan = plan if known is None else keep_lengths(plan, known)
            runs.append(await _prepare_side(name, plan, session))
            known = runs[-1].plan
    return runs


def _plan_of(plan: Plan, first: CompareSide | None) -> Plan:
    """Return the plan by which a side is asked, matched to `first` if that is asked as well."""
    plan = replace(plan, no_reference=True, early_stop=None, verdict=Spec(name="classic"))
    plan = replace(plan, accept_identical=False)
    if first is not None:
        plan = replace(plan, limits=first.plan.limits, seed=first.plan.seed)
        plan = replace(plan, repeats=first.plan.repeats, repeats_of=first.plan.repeats_of)
        plan = replace(plan, tasks=_in_the_order_of(first.plan.tasks, plan.tasks))
    return plan


async def _prepare_side(name: str, plan: Plan, session: ComparisonSession) -> SideRun:
    """Settle the plan of a side, and prepare its tasks."""
    if plan.limits.concurrency == "auto":
        raise PlanError(
            "concurrency: a comparison needs a fixed number", hint="Such as --concurrency 64."
        )
    extensions.include(plan.include_path)
    plan = await with_model(plan, session.environ)
    folder = session.out_dir / name.lower()
    if not folder.exists():
        check_launcher(plan)
    plan = await settle(plan, folder, session.environ)
    prepared = await asyncio.to_thread(prepare, plan)
    return SideRun(side=name, plan=plan, prepared=prepared, folder=folder, label=name)


def _in_the_order_of(first: Sequence[Spec], tasks: Sequence[Spec]) -> tuple[Spec, ...]:
    """Return the tasks in the order of `first`; any other order gives both different prompts."""
    places = {spec.name: place for place, spec in enumerate(first)}
    return tuple(sorted(tasks, key=lambda spec: places.get(spec.name, len(places))))


def check_two_servers(a: CompareSide, b: CompareSide, rules: CompareRules) -> None:
    """Raise PlanError if one server would be compared with itself, which always passes.

    One server may answer as two: by another model, other headers, or another protocol. Sides that
    launch their servers have two.
    """
    if a.folder is not None or b.folder is not None or rules.allow_mismatch:
        return
    urls = [side.plan.launcher.options.get("base_url") for side in (a, b)]
    if not all(urls) or (a.plan.model, a.plan.connection) != (b.plan.model, b.plan.connection):
        return
    if list_servers(str(urls[0])) & list_servers(str(urls[1])):
        raise PlanError(
            f"A and B are the same server: {urls[0]} and {urls[1]}",
            hint=(
                "Name two servers. To compare a server with itself: serve-eval check invariants"
                f" {urls[0]}"
            ),
        )


def check_alike(
    a: CompareSide, b: CompareSide, runs: Sequence[SideRun], rules: CompareRules
) -> None:
    """Check that A and B ask and score the same, and that A has enough runs for the rule.

    Raises NotComparableError if not, and PlanError for a margin that the answers can never exclude.
    """
    if (needed := reference_runs_needed(rules.rule)) > min(
        a.plan.times(spec.name) for spec in a.plan.tasks
    ):
        raise NotComparableError(
            f"--verdict {rules.rule.name}: A is the reference and must answer each prompt at least"
            f" {needed} times",
            hint=f"Give --repeats {needed} or more.",
        )
    prints = {run.side: {p.task.name: p.fingerprint for p in run.prepared} for run in runs}
    for name, side in (("A", a), ("B", b)):
        if side.folder is not None:
            prints[name] = run_folder.read_fingerprints(side.folder)
    # Finished runs of a subset and of the whole are compared on their common prompts.
    allowed = rules.allow_mismatch if runs else (*rules.allow_mismatch, *CHOICE)
    if lines := same_fingerprints(prints["A"], prints["B"], allowed):
        more = [f"... and {len(lines) - 20} more"] if len(lines) > 20 else []
        raise NotComparableError(
            "A and B do not ask the same:\n"
            + "\n".join(f"  {line}" for line in (*lines[:20], *more)),
            hint="To compare anyway, give --allow-mismatch FIELD.",
        )
    new = [run for run in runs if not run_folder.holds_run(run.folder)]
    asked = {p.task.name: p for run in new for p in run.prepared}
    check_pair_margins(
        rules.rule, [(p, a.plan.times(name), b.plan.times(name)) for name, p in asked.items()]
    )


def same_fingerprints(
    a: Mapping[str, Mapping[str, str]], b: Mapping[str, Mapping[str, str]], allowed: Sequence[str]
) -> list[str]:
    """Return the differences in what two runs ask or score, as lines."""
    lines = [f"{name}: only A has this task" for name in a if name not in b]
    lines += [f"{name}: only B has this task" for name in b if name not in a]
    for name in (name for name in a if name in b):
        fields = dict.fromkeys((*a[name], *b[name]))
        lines += [
            f"{name}: {field} is {a[name].get(field)} for A and {b[name].get(field)} for B"
            for field in fields
            if field not in allowed and a[name].get(field) != b[name].get(field)
        ]
    return lines


def bind_folder(out_dir: Path, a: CompareSide, b: CompareSide, rules: CompareRules) -> None:
    """Record what is compared and how, or raise RunFolderError if the folder holds something else.

    A margin that is chosen after the answers are known proves nothing.
    """
    content: dict[str, Any] = {"rules": rules}
    for name, side in (("a", a), ("b", b)):
        content[name] = (
            {"run": str(side.folder.absolute())}
            if side.folder
            else {"launcher": side.plan.launcher}
        )
    wanted = msgspec.json.decode(msgspec.json.encode(content))
    refuse_other(out_dir, "comparison", COMPARE.find_plan_content(out_dir), wanted)
    COMPARE.write_plan(out_dir, content)


def share_order(runs: Sequence[SideRun], session: ComparisonSession) -> list[SideRun]:
    """Give both sides one seed, so that they ask the same prompts in the same order.

    In two different orders, each side would block the other.
    """
    if not runs:
        return []
    plan = runs[0].plan
    seed = order_seed.settle_shared(session.out_dir, plan)
    if (line := order_seed.not_followed(plan, seed)) is not None:
        session.notify(f"warning: {line}")
    return [replace(run, seed=seed) for run in runs]


def expect_scores(finished: Path, prepared: Sequence[PreparedTask]) -> list[PreparedTask]:
    """Set the scores of a finished run as the expected scores of the tasks.

    Sides that are asked at the same time have no expected scores.
    """
    report = read_report(finished)
    known = {task.result.task for task in report.tasks}
    found = []
    for p in prepared:
        earlier = None
        if p.task.name in known:
            metric, lines = p.task.metric, read_task(finished, report, p.task.name).lines
            ids = [sample.id for sample in p.dataset.samples]
            runs = [
                [line.value if (line := one.get(name)) else math.nan for name in ids]
                for one in lines
            ]
            earlier = estimate_expected(
                runs, lo=metric.lo, hi=metric.hi, higher_is_better=metric.higher_is_better
            )
        found.append(replace(p, earlier=earlier))
    return found


def list_hidden_prompts(a: CompareSide, runs: Sequence[SideRun]) -> frozenset[tuple[str, str]]:
    """Return the prompts whose texts must not be shown; only your own cases have any."""
    if not any(is_mutable(spec.name) for spec in a.plan.tasks):
        return frozenset()
    prepared = runs[0].prepared if runs else prepare(replace(a.plan, no_reference=True))
    return frozenset(
        (p.task.name, s.id) for p in prepared for s in p.dataset.samples if HOLDOUT in s.metadata
    )


class PolicyCheck:
    """The sampling of the sides, as far as it is known.

    `allowed`: the sides may differ in it.
    """

    def __init__(self, allow_mismatch: Sequence[str]) -> None:
        self._allowed = SERVER_ADDS in allow_mismatch
        self._known: dict[str, SideSampling] = {}

    def note_folder(self, side: str, folder: Path) -> None:
        """Note the sampling of a finished run. Raises NotComparableError, as `note` does."""
        if has_report(folder):
            self._add(side, SideSampling.of_report(read_report(folder)))

    def note(self, side: str, found: SamplingDefaults | None, tasks: Sequence[Task]) -> None:
        """Note the sampling of a side that was just probed.

        Raises NotComparableError if the other side is known and the policies of both ask otherwise.
        """
        self._add(side, SideSampling.of_tasks(found, tasks))

    def _add(self, side: str, sampling: SideSampling) -> None:
        self._known[side] = sampling
        if self._allowed or len(self._known) < 2:
            return
        unlike = find_unlike_policies(self._known["A"], self._known["B"])
        if unlike is not None:
            raise NotComparableError(
                "A and B do not ask the same:\n" + "\n".join(f"  {line}" for line in unlike.told),
                hint=(
                    f"Ask {unlike.keeps} again with --set server_defaults=neutral, as the"
                    " other side is"
                    f" asked. To compare anyway, give --allow-mismatch {SERVER_ADDS}."
                ),
            )
