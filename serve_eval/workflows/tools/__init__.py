"""Check the tool calls of an endpoint, and name the parser or the stream at fault.

The set is asked whole and streamed, at several numbers of requests in flight, in a random order of
the passes. OUT/whole_1, OUT/stream_8 and so on are ordinary run folders, OUT/tools_plan.json holds
what was asked and what the endpoint supports, and OUT/tools.json is the result. The same command
resumes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from serve_eval.errors import PlanError, RunFolderError
from serve_eval.evaluation.launch import launch
from serve_eval.evaluation.passes import PassSettings, check_same_passes, settle_order
from serve_eval.evaluation.run_session import Stopwatch, ignore
from serve_eval.frozen import freeze
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.scope import with_scope
from serve_eval.report.ci_result import CiCase, CiState, CiSuite
from serve_eval.report.document import Block, Conclusion, Depth, Document, Statement
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, State
from serve_eval.schema import Plan, Progress, Spec, ToolCell, ToolCheck, ToolFinding, ToolProbe
from serve_eval.scorers._served_call import CallFault
from serve_eval.shell_words import quote_argument, quote_path
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import SERVERS
from serve_eval.storage.story_files import TOOLS
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, PASS, UNDECIDED, went_through
from serve_eval.workflows.tools.answers import TASK, ToolPass, sum_up
from serve_eval.workflows.tools.asking import (
    REFUSALS,
    ToolsPlan,
    ask_passes,
    choose_kinds,
    list_kinds,
    name_folder,
    prepare_set,
    probe_endpoint,
    read_passes,
)
from serve_eval.workflows.tools.judging import find_exit_code, judge_passes, list_remarks

LOADS = (1, 8, 32, 128)
"""Default numbers of requests in flight."""
HIGHEST = 100_000


@freeze
class ToolRules:
    """Thresholds, an earlier check and required kinds, by which answers are judged.

    `limits` replaces thresholds by the name of the error. `reference` is the folder of an earlier
    check. The kinds in `needed` must be supported, and with REFUSALS, fields be refused.
    """

    limits: Mapping[str, float] = field(default_factory=dict)
    reference: Path | None = None
    needed: frozenset[str] = frozenset()


def check_limits(limits: Mapping[str, float]) -> None:
    """Raise PlanError for an unknown error or a share outside 0 to 1."""
    known = [fault.value for fault in CallFault]
    for name, share in limits.items():
        if name not in known:
            raise PlanError(f"tools.max: {name}: no such error", hint=f"Known: {', '.join(known)}.")
        if not 0.0 <= share < 1.0:
            raise PlanError(f"tools.max: {name}={share:g}: expected a share from 0 to 1")


@with_scope
async def check_tools(
    plan: Plan,
    out_dir: Path,
    loads: Sequence[int] = LOADS,
    *,
    rules: ToolRules | None = None,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
    notify: Callable[[str], None] = ignore,
) -> ToolCheck:
    """Ask what is left to ask, judge all passes, and write tools.json.

    Raises ServeEvalError for what stops a run.
    """
    clock, loads, rules = Stopwatch(), tuple(sorted(set(loads))), rules or ToolRules()
    limits = replace(plan.limits, concurrency=loads[0], max_error_rate=1.0)
    plan = replace(plan, tasks=plan.tasks or (Spec(name=TASK),), limits=limits)
    plan = choose_kinds(plan, list_kinds(plan))
    saved = TOOLS.find_plan(out_dir, ToolsPlan)
    plan, prepared = await prepare_set(plan, out_dir, loads, environ)
    shared = PassSettings(
        command=TOOLS.command, out_dir=out_dir, progress=progress, environ=environ, notify=notify
    )
    with run_folder.hold(out_dir, TOOLS.plan, "such checks"):
        TOOLS.drop(out_dir)
        logs = out_dir / SERVERS
        logs.mkdir(mode=0o700, exist_ok=True)
        async with launch(plan, [prepared], logs, notify=notify) as endpoint:
            if saved is None or not run_folder.has_answers_below(out_dir):
                samples = prepared.dataset.samples
                saved = await probe_endpoint(plan, loads, samples, endpoint, environ)
                TOOLS.write_plan(out_dir, saved)
            kinds = list_kinds(saved.plan)
            plan, prepared = await prepare_set(choose_kinds(plan, kinds), out_dir, loads, environ)
            _check_same(out_dir, saved, plan, loads)
            seed = settle_order(out_dir, plan, notify)
            passes, gave_up = await ask_passes(saved, prepared, endpoint, shared, seed)
        found = _judge(saved, prepared, passes, rules)
        found = replace(
            found,
            remarks=(*gave_up, *found.remarks),
            started_at=clock.started_at,
            wall_s=clock.wall_s,
        )
        TOOLS.write(out_dir, found)
    return found


def _check_same(out_dir: Path, saved: ToolsPlan, plan: Plan, loads: Sequence[int]) -> None:
    """Raise RunFolderError if the folder has answers to something else."""
    check_same_passes(out_dir, saved.plan, plan, ("order",))
    if saved.loads != tuple(loads) and run_folder.has_answers_below(out_dir):
        raise RunFolderError(
            f"{out_dir} holds the loads {', '.join(map(str, saved.loads))}",
            hint="Use another folder with -o.",
        )


def _judge(
    asked: ToolsPlan, prepared: PreparedTask, passes: Sequence[ToolPass], rules: ToolRules
) -> ToolCheck:
    if not passes:
        raise RunFolderError("no pass could be asked to the end")
    reference = [] if rules.reference is None else _read_reference(rules.reference, prepared)
    findings = judge_passes(passes, reference, rules.limits)
    lacking = [one.name for one in asked.unsupported if one.name in rules.needed]
    lacking += [
        one.name
        for one in asked.parameters
        if one.outcome == "IGNORED" and REFUSALS in rules.needed
    ]
    failed = any(one.outcome == "FAIL" for one in asked.parameters)
    failed |= bool(findings or lacking)
    code, rehearsal = find_exit_code(passes, failed=failed), passes[0].report.rehearsal
    return ToolCheck(
        rehearsal=rehearsal,
        schema_version=TOOLS.version,
        model=asked.plan.model,
        base_url=passes[0].report.endpoint.base_url,
        fingerprint=prepared.fingerprint["samples"],
        kinds=list_kinds(asked.plan),
        unsupported=asked.unsupported,
        parameters=asked.parameters,
        cells=tuple(map(sum_up, passes)),
        findings=findings,
        remarks=tuple(list_remarks(passes, reference, lacking)),
        reference=None if rules.reference is None else str(rules.reference),
        requests=sum(one.report.tasks[0].result.planned for one in passes),
        exit_code=went_through(code) if rehearsal else code,
        started_at="",
        wall_s=0.0,
    )


def _read_reference(folder: Path, prepared: PreparedTask) -> list[ToolPass]:
    """Return the passes of an earlier check of the same requests. Raises RunFolderError."""
    earlier, asked = TOOLS.read(folder, ToolCheck), TOOLS.find_plan(folder, ToolsPlan)
    if earlier is None:
        raise RunFolderError(
            f"{folder} has no result of `serve-eval check tools`",
            hint=f"Finish it first: serve-eval check tools ENDPOINT -o {quote_path(folder)}",
        )
    if asked is None or earlier.fingerprint != prepared.fingerprint["samples"]:
        kinds = ", ".join(earlier.kinds)
        raise RunFolderError(
            f"{folder} holds other requests ({kinds})",
            hint="Ask the same kinds with --set tools.kinds=NAMES, and the same --limit and seed.",
        )
    return read_passes(folder, asked.loads, prepared.dataset.samples)


SHOWN, MOST = 44, 160
"""Characters of an example, and of a reply, that are shown."""
TINY = 1e-12
"""Smallest p-value that is shown."""
SHORT = "w1: whole at 1 in flight; s8: streamed at 8"
"""The meaning of the names of columns."""
_OUTCOMES = {FAIL: "FAIL", PASS: "PASS", UNDECIDED: "INCONCLUSIVE", NOTHING_SCORED: "ERROR"}
_PROBES: dict[str, tuple[str, State, CiState]] = {
    "PASS": ("fields", "pass", CiState.PASSED),
    "FAIL": ("error", "fail", CiState.FAILURE),
    "IGNORED": ("ignored", "warn", CiState.SKIPPED),
    "UNSUPPORTED": ("lacks", "warn", CiState.SKIPPED),
}
"""By the outcome of a field: its label, its colour and its state in CI."""


def make_document(found: ToolCheck, out_dir: Path) -> Document:
    """Return the document of a check: what accuses the server, with examples, and the counts."""
    withheld = found.rehearsal and found.exit_code == PASS
    scored, failed, sound = (
        sum(getattr(cell, name) for cell in found.cells) for name in ("scored", "failed", "sound")
    )
    point = f", which points to: {found.findings[0].points_to}" if found.findings else ""
    conclusion = Conclusion(
        "tool calls",
        _OUTCOMES[UNDECIDED if withheld else found.exit_code],
        figures=f"{sound:,} of {scored:,} answers have no error" if scored else "no answer",
        counts=f"{scored + failed:,} requests, {failed:,} without an answer",
        cause="" if found.exit_code == PASS else _conclude(found) + point,
        sure=False,
        statements=[
            *(row for one in found.findings for row in _describe_finding(one)),
            *_list_probes(found),
        ],
    )
    return Document(
        "tools",
        f"serve-eval check tools {found.base_url}",
        found,
        conclusions=[conclusion],
        endpoint=found.base_url,
        statements=_describe_rest(found),
        blocks=_list_tables(found),
        commands=list(_list_next(found, out_dir)),
        suites=[_make_suite(found)],
        result=out_dir / TOOLS.result,
    )


def _conclude(found: ToolCheck) -> str:
    """Return what the check found, in a few words."""
    failing = [row.name for row in found.parameters if row.outcome == "FAIL"]
    told = [f"{one.fault} {one.where}" for one in found.findings] + failing
    if told:
        return told[0] + (f", and {len(told) - 1} more" if len(told) > 1 else "")
    return {
        PASS: "",
        FAIL: "something required is missing",
        UNDECIDED: _explain_undecided(found),
        NOTHING_SCORED: "no request has an answer",
    }[found.exit_code]


def _explain_undecided(found: ToolCheck) -> str:
    if all(2 * one.faults.get(CallFault.CUT, 0) <= one.scored for one in found.cells):
        return "too few requests have an answer"
    return "most answers were cut: raise the limit with --set tool_calls.max_tokens=N"


def _describe_finding(one: ToolFinding) -> Iterator[Statement]:
    """Yield a finding in words: the error, where, how often, its meaning, and examples."""
    against = {
        "threshold": "more than the threshold",
        "lowest load": "more than at the lowest load",
        "whole answer": "more than in whole answers",
        "reference": "more than in the reference",
        "itself": "never before a call, and before nearly every text",
    }[one.against]
    if one.p is not None:
        proof = f"{against}, p {f'= {one.p:.1g}' if one.p >= TINY else f'< {TINY:g}'}"
    else:
        proof = against if one.against == "itself" else "and a model cannot cause one"
    found = f"{one.fault} {one.where}: {one.count} of {one.scored}, {proof}"
    yield Statement("error", found, state="fail")
    for i, (sample, answer) in enumerate(one.examples):
        text = " ".join(answer.split())
        shown = f"{sample}: {text[:SHOWN]}{'...' if len(text) > SHOWN else ''}"
        yield Statement("e.g.", shown, depth=Depth.MORE if i else Depth.FIRST)
    yield Statement("look at", one.points_to, depth=Depth.MORE)


def _list_probes(found: ToolCheck) -> Iterator[Statement]:
    """Yield the kinds of requests and the fields that are not as they should be."""
    rows = (*found.unsupported, *found.parameters)
    for row in rows:
        label, state, _ = _PROBES[row.outcome]
        if row.outcome != "PASS":
            text = f"{row.name}: {' '.join(row.said.split())[:MOST]}"
            depth = Depth.FIRST if row.outcome == "FAIL" else Depth.MORE
            yield Statement(label, text, state=state, depth=depth)
    passed = sum(row.outcome == "PASS" for row in found.parameters)
    text = f"{passed} of {len(found.parameters)} fields work or are refused as they should"
    yield Statement("fields", text)


def _describe_rest(found: ToolCheck) -> list[Statement]:
    """Return the remarks, which do not accuse the server, and the cost of the check."""
    prompt = sum(one.prompt_tokens for one in found.cells)
    answer = sum(one.completion_tokens for one in found.cells)
    cost = (
        f"{found.requests:,} requests, {prompt:,} prompt tokens, {answer:,} answer tokens,"
        f" {found.wall_s:.0f} s"
    )
    number = found.fingerprint.split()[0]
    rows = [("note", line) for line in found.remarks]
    rows += [("cost", cost), ("set", f"{number} requests in each form at each load")]
    return [Statement(label, text, depth=Depth.MORE) for label, text in rows]


def _list_next(found: ToolCheck, out_dir: Path) -> Iterator[str]:
    """Yield the commands that come next: an example, or the comparison after an update."""
    example = next((one for one in found.findings if one.examples and one.cells), None)
    if example is not None:
        [cell] = [one for one in found.cells if one.name == example.cells[0]]
        run = quote_path(out_dir / name_folder(cell.form, cell.load))
        yield f"serve-eval show {run} {quote_argument(example.examples[0][0])}"
    elif found.exit_code == PASS and not found.rehearsal:
        yield f"serve-eval check tools {found.base_url} --reference {quote_path(out_dir)}"


def _list_tables(found: ToolCheck) -> list[Block]:
    """Return the tables of passes, of kinds of requests and of errors."""
    passes = ("form", "load", "sound (95 %)", "failed", "prec.", "recall", "F1", "tokens", "s")
    short = [f"{one.form[0]}{one.load}" for one in found.cells]
    tables = [
        _tabulate("Passes", passes, [_write_pass(one) for one in found.cells], "sound: no error"),
        _tabulate("Errors", ("errors", *short), _count_faults(found), SHORT),
        _tabulate("Sound by kind, %", ("kind", "n", *short), _count_kinds(found), SHORT),
    ]
    bad = bool(found.findings)
    return [
        Block(table, depth=Depth.FIRST if i == bad else Depth.MORE)
        for i, table in enumerate(tables)
        if table.rows
    ]


def _tabulate(
    title: str, names: Sequence[str], rows: Sequence[Sequence[str]], caption: str
) -> DataTable:
    return DataTable(
        title,
        columns=[DataColumn(name, number=i > 0) for i, name in enumerate(names)],
        rows=[[DataCell(text) for text in row] for row in rows],
        caption=caption,
    )


def _write_pass(one: ToolCell) -> list[str]:
    share = "-"
    if one.interval is not None:
        low, high = one.interval
        share = f"{100 * one.sound / one.scored:.1f} ({100 * low:.0f}-{100 * high:.0f})"
    return [
        one.form,
        str(one.load),
        share,
        str(one.failed),
        *("-" if x is None else f"{x:.3f}" for x in (one.precision, one.recall, one.f1)),
        str(one.prompt_tokens + one.completion_tokens),
        f"{one.wall_s:.1f}",
    ]


def _count_kinds(found: ToolCheck) -> list[list[str]]:
    """Return the percentage without an error by kind of request, with a column for each pass."""
    rows = []
    for kind in found.kinds:
        counts = [one.kinds.get(kind, (0, 0)) for one in found.cells]
        shown = [f"{100 * sound / n:.0f}" if n else "-" for sound, n in counts]
        rows.append([kind, str(max((n for _, n in counts), default=0)), *shown])
    return rows


def _count_faults(found: ToolCheck) -> list[list[str]]:
    """Return the number of answers with each error, with a column for each pass."""
    return [
        [fault.value, *(str(one.faults.get(fault.value, 0)) for one in found.cells)]
        for fault in CallFault
        if any(one.faults.get(fault.value) for one in found.cells)
    ]


def _make_suite(found: ToolCheck) -> CiSuite:
    """Return a case for each field and each pass. A kind that is not supported is skipped."""
    cases = [_describe_probe(row) for row in (*found.unsupported, *found.parameters)]
    cases += [_describe_cell(found, cell) for cell in found.cells]
    return CiSuite("serve-eval check tools", cases, host=found.base_url, seconds=found.wall_s)


def _describe_probe(row: ToolProbe) -> CiCase:
    state = _PROBES[row.outcome][2]
    return CiCase("tools.fields", row.name, state=state, message=row.said)


def _describe_cell(found: ToolCheck, cell: ToolCell) -> CiCase:
    blamed = [one for one in found.findings if cell.name in one.cells]
    rows = [row for one in blamed for row in _describe_finding(one)]
    return CiCase(
        "tools.answers",
        cell.name,
        state=CiState.FAILURE if blamed else CiState.PASSED,
        message="; ".join(one.fault for one in blamed),
        details=[f"{row.label}: {row.text}" for row in rows],
        properties={fault: str(count) for fault, count in cell.faults.items()},
        seconds=cell.wall_s,
    )
