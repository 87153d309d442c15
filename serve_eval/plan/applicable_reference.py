"""Find the reference that may judge a task, or refuse the task that has none."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from serve_eval.errors import DatasetError, NotComparableError, PlanError, ReferenceFileError
from serve_eval.frozen import freeze
from serve_eval.plan.command_line import HOW_TO_TAKE, write_take_command
from serve_eval.plan.prepared_task import DATASET, find_roots
from serve_eval.protocol.sampling_fields import CASES, SCORER_OPTIONS, protocol_differences
from serve_eval.protocol.shared import ONLY_IF_SET, OWN_ONLY_IF_SET, build_task, usual_task
from serve_eval.schema import Dataset, Plan, Reference, Spec, Task
from serve_eval.verdicts import pairing
from serve_eval.verdicts.references import (
    IMPORTED,
    explain_missing,
    find,
    find_shipped_dir,
    range_problems,
)

SEED = "seed"
"""Field of a protocol with the sampling seed."""
_SCORE_ALIKE = ("lm-eval", "an export of serve-eval")
"""Beginnings of the sources of references whose answers were scored as here."""
_OURS = ("truncate_prompt_tokens",)
"""Fields that only our own requests have; no other tool records them."""


@freeze
class ApplicableReference:
    """The reference of a task, or the reason why none applies.

    `refused` names the fields of the protocol that are the reason. `protocol` is the report's text
    about the protocol of the reference. `draw` is a note about another sampling seed, and
    `unrecorded` one about parts of the protocol that an imported reference does not record.
    """

    found: Reference | None = None
    why: str | None = None
    refused: tuple[str, ...] = ()
    protocol: str | None = None
    draw: str | None = None
    unrecorded: str | None = None


def find_applicable(plan: Plan, spec: Spec, task: Task) -> ApplicableReference:
    """Return the reference of a task. Raises ReferenceFileError for a file with a mistake."""
    found, why = _find(plan, task)
    if found is None:
        return ApplicableReference(why=why)
    return _compare_protocol(plan, spec, task, found)


def reference_directories(plan: Plan) -> list[Path]:
    """Return the folders of references: the user's first, then the shipped ones."""
    own = [Path(plan.references_dir)] if plan.references_dir else []
    return [*own, find_shipped_dir()]


def _find(plan: Plan, task: Task) -> tuple[Reference | None, str | None]:
    """Return the reference, or the reason why it is missing."""
    if task.control_of is not None:
        return None, f"a control: it is judged if {task.control_of} is in the same run"
    if task.recorded:
        return None, (
            "recorded requests have no right answers: the value is the share of answers in the form"
            " that was asked for, and no accuracy"
        )
    model = plan.reference_model or plan.model
    if model is None:
        return None, "the model is not known yet"
    directories = reference_directories(plan)
    found = find(task.reference_file, model, plan.accuracy_spec, directories)
    if found is not None:
        if found.metric not in (task.metric.name, "accuracy"):
            place = f"{found.file}:{found.line}: {model}"
            raise ReferenceFileError(
                f"{place}: the value is a {found.metric}; {task.name} gives {task.metric.name}"
            )
        if problems := list(range_problems(found, task.metric)):
            place = f"{found.file}:{found.line}: {model}"
            raise ReferenceFileError("\n".join(f"{place}: {problem}" for problem in problems))
        return found, None
    return None, explain_missing(task.reference_file, model, plan.accuracy_spec, directories)


def _compare_protocol(plan: Plan, spec: Spec, task: Task, found: Reference) -> ApplicableReference:
    """Return the reference, with the reason for refusing it if its protocol is another one."""
    if found.protocol is not None:
        other: Any = found.protocol
        known = "recorded with the reference"
    else:
        other, known = _assume_protocol(spec, task, found)
    unset = {name: None for name in (*ONLY_IF_SET, *OWN_ONLY_IF_SET) if name in task.protocol}
    here = {**task.protocol, **task.reference_fields}
    differing = protocol_differences(here, {**unset, **other})
    if CASES in task.reference_fields:
        differing = _settle_cases(plan, task, found, differing)
    draw = _describe_draw(here, other) if SEED in differing else None
    if draw is not None:
        differing.remove(SEED)
    refused = tuple(name for name in differing if name not in plan.allow_mismatch)
    why = None
    if refused:
        details = "; ".join(
            f"{name} is {here.get(name)!r} here and {other.get(name)!r} with the reference"
            for name in refused
        )
        why = f"the protocol differs from the reference's, which is {known}: {details}"
    elif differing:
        known += f", mismatch allowed: {', '.join(differing)}"
    return ApplicableReference(
        found=found,
        why=why,
        refused=refused,
        protocol=known,
        draw=draw,
        unrecorded=_describe_unrecorded(here, found),
    )


def list_unrecorded(here: Mapping[str, Any], recorded: Mapping[str, Any], tool: str) -> list[str]:
    """Return what a reference of another tool does not record of a protocol and may decide a value.

    At temperature 0 top_p decides nothing. A field that is absent unless chosen was not chosen.
    Of the other tools, only lm-eval scores as we do.
    """
    idle = ("top_p", SEED) if recorded.get("temperature") == 0 else ()
    skipped = {*_OURS, *idle, *recorded, *ONLY_IF_SET, *OWN_ONLY_IF_SET, CASES}
    found = [name for name, value in here.items() if name not in skipped and value is not None]
    return found if tool.startswith(_SCORE_ALIKE) else [*found, "scorer"]


def _describe_unrecorded(here: Mapping[str, Any], found: Reference) -> str | None:
    """Return the note about parts of the protocol that an imported reference does not record.

    A difference in them is not seen. References of our own record all parts.
    """
    source = found.source or ""
    if found.protocol is None or not source.startswith(IMPORTED):
        return None
    tool = source.removeprefix(IMPORTED)
    unknown = list_unrecorded(here, found.protocol, tool)
    prompts = () if found.runs is not None or "prompts" in found.protocol else ("the prompts",)
    if not (lacking := [*prompts, *unknown]):
        return None
    return (
        f"the reference was imported ({tool}), and does not record"
        f" {', '.join(lacking)}: a difference there is not seen"
    )


def _describe_draw(here: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Return the note about a run with another sampling seed; None if the seed refuses it.

    A reference without a seed is a mean over draws, and a run with a seed is another draw. At
    temperature 0 nothing is drawn. The runs of a seeded reference are one draw: their scores look
    more stable than they are to a run with another seed.
    """
    seeds = f"sampling seed {here.get(SEED)} here and {other.get(SEED)} with the reference"
    if here.get("temperature") == 0 and other.get("temperature", 0) == 0:
        return f"{seeds}: at temperature 0 a seed draws nothing"
    if other.get(SEED) is None:
        seeds = f"sampling seed {here.get(SEED)} here and none with the reference"
        return f"{seeds}: a seed is a draw, not a protocol"
    return None


def _settle_cases(plan: Plan, task: Task, found: Reference, differing: list[str]) -> list[str]:
    """Return the differing fields in view of the scores per sample of the reference.

    These know each case with its expected value and scorer. A reference with all cases of the run
    has the same ones, also where an earlier version recorded no options of scorers. One that has
    none of them, no checksum and no other difference was taken with other ones.
    """
    try:
        asked = task.load(find_roots(plan), task.hypothesis.num_samples or 1)
    except (DatasetError, PlanError):
        return differing  # `prepare` says so of every task.
    known = pairing.count_known(asked, found)
    if known == len(asked.samples):
        return [name for name in differing if name not in (CASES, SCORER_OPTIONS)]
    recorded = CASES in (found.protocol or {})
    return differing or ([CASES] if known == 0 and not recorded else [])


def _assume_protocol(spec: Spec, task: Task, found: Reference) -> tuple[Any, str]:
    """Return the assumed protocol of a reference that records none, and the report's text about it.

    It is the task's own protocol. For a shipped row with the suite followed exactly, it is the
    suite's, which renders a chat itself. The first imports of BioChatter's results recorded none;
    all are scored as BioChatter scores.
    """
    from serve_eval.cases import biochatter  # Rarely needed: most references record a protocol.

    usual = usual_task(spec)
    if (found.source or "").startswith(biochatter.RESULTS):
        return {**usual.protocol, biochatter.AS_BIOCHATTER: True}, "assumed (as BioChatter scores)"
    if not _is_shipped(found):
        return usual.protocol, "assumed (task default)"
    if not task.protocol.get("suite_exact"):
        exact = usual_task(spec, suite_exact=True).protocol
        others = sorted({*protocol_differences(usual.protocol, exact)} - {"suite_exact"})
        hint = f"; suite_exact would change {', '.join(others)}" if others else ""
        return usual.protocol, f"assumed (task default{hint})"
    names = ("suite_exact", "tokenizer", "template_date") if usual.chat else ("suite_exact",)
    options = {name: spec.options[name] for name in names if name in spec.options}
    return usual_task(spec, **options).protocol, "assumed (as in the suite)"


def _is_shipped(found: Reference) -> bool:
    return Path(found.file).parent == find_shipped_dir()


def explain_refusal(plan: Plan, task: Task, dataset: Dataset, found: Reference) -> str | None:
    """Return why a shipped reference must not judge this data, or None if it may."""
    if not _is_shipped(found) or dataset.deviation is None or DATASET in plan.allow_mismatch:
        return None
    files = ", ".join(file.path for file in dataset.files[:4])
    return (
        f"{task.name}: the data is incomplete or not the published set: {dataset.deviation}. It was"
        f" read from {files}{', ...' if len(dataset.files) > 4 else ''}"
    )


_NO_ROW_HINT = (
    "Give the --model and the specification of a registered row, or pass your own rows with"
    " --references-dir."
)
_NO_VERDICT_HINT = (
    " To print the value without a verdict: --set allow_missing_reference=true, or for all tasks"
    f" --no-reference. {HOW_TO_TAKE}:"
)


OTHER_PROTOCOL = "another protocol"
"""Reason for replacing an entry of the same model that did not apply."""


class LackingReference(NamedTuple):
    """A task that no reference may judge, and why.

    `spec` is its name in the plan, and `refused` names the fields of the protocol that are the
    reason. `hint` says what else mends them. `replaced`: a new reference would replace one in the
    folder of the plan.
    """

    spec: str
    task: str
    why: str
    refused: tuple[str, ...] = ()
    hint: str = ""
    replaced: bool = False


def may_lack(plan: Plan) -> bool:
    """Return True if a task may be asked without a reference."""
    return plan.no_reference or plan.allow_missing_reference or plan.integration_test


def is_replaced(plan: Plan, reference: Reference) -> bool:
    """Return True if a reference that is taken for this plan would replace this one."""
    folder = plan.references_dir
    return folder is not None and Path(reference.file).parent == Path(folder)


def write_taking(plan: Plan, tasks: Collection[str]) -> str:
    """Return the command that takes references for tasks, with a reason if it replaces entries."""
    replaced = any(_list_taken(plan, tasks))
    return write_take_command(plan, tasks, reason=OTHER_PROTOCOL if replaced else None)


def _list_taken(plan: Plan, tasks: Collection[str]) -> Iterator[bool]:
    """Yield for each task whether the folder of the plan has an entry of its model."""
    model = plan.reference_model or plan.model
    if plan.references_dir is None or model is None:
        return
    for spec in plan.tasks:
        if spec.name in tasks:
            try:
                file = build_task(spec, spec.name).reference_file
                found = find(file, model, plan.accuracy_spec, [Path(plan.references_dir)])
            except (PlanError, ReferenceFileError):
                continue  # The command itself says so.
            yield found is not None


def find_lacking(plan: Plan, lacking: Sequence[LackingReference]) -> list[NotComparableError]:
    """Return an error for the tasks without a reference that applies, unless they may lack one."""
    if not lacking or may_lack(plan):
        return []
    refused = list(dict.fromkeys(name for one in lacking for name in one.refused))
    hints = [*dict.fromkeys(one.hint for one in lacking if one.hint)]
    hints += [_explain_mismatch(refused)] if refused else []
    hints += [_NO_ROW_HINT] if any(not one.refused for one in lacking) else []
    other = dict.fromkeys(name for one in lacking if one.replaced for name in one.refused)
    reason = f"other {', '.join(other)}" if other else None
    take = write_take_command(plan, [one.spec for one in lacking], reason=reason)
    return [
        NotComparableError(
            "\n".join(f"{one.task}: {one.why}" for one in lacking),
            hint=f"{' '.join(hints)}{_NO_VERDICT_HINT}\n  {take}",
        )
    ]


def _explain_mismatch(fields: Sequence[str]) -> str:
    """Return how to compare although these fields of the protocol differ."""
    flags = " ".join(f"--allow-mismatch {name}" for name in fields)
    seed = (
        " A seed is a draw, not a protocol: a reference that is taken without one judges runs of"
        " any seed."
    )
    return (
        f"To compare anyway: {flags}, or in a plan: allow_mismatch: [{', '.join(fields)}]."
        f"{seed if SEED in fields else ''}"
    )
