"""Make the document of asking each worker separately. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from serve_eval.report.attribution import accusations, list_workers, sentences
from serve_eval.report.ci_result import CiCase, CiState, CiSuite
from serve_eval.report.document import Block, Conclusion, Depth, Document, Statement
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.schema import Attributed, Attribution
from serve_eval.shell_words import quote_argument
from serve_eval.storage.story_files import ATTRIBUTE
from serve_eval.verdicts.exit_code import FAIL, INFRASTRUCTURE, NOTHING_SCORED, PASS

COLUMNS = ("worker", "bad", "others", "p", "role", "measure")
CAPTION = "others: the bad answers of all others of the role; p: exact, corrected (Holm)"
_OUTCOMES = {FAIL: "FAIL", PASS: "PASS", INFRASTRUCTURE: "ERROR", NOTHING_SCORED: "ERROR"}
_BETWEEN = ": the transfer between them, or how they fit together"
_FACTS = ("transfer of the KV cache", "prompt tokens from", "wrong answers are counted")
"""Beginnings of sentences that decide nothing."""


def make_document(found: Attributed, run: Path) -> Document:
    """Return the document: the accused workers, with the counts of all."""
    parts = _list_parts(found)
    accused = [(name, text) for name, part in parts for text in accusations(part)]
    outcome = _OUTCOMES[found.exit_code]
    lost = found.exit_code == INFRASTRUCTURE and bool(found.warnings)
    conclusion = Conclusion(
        "workers",
        "INCONCLUSIVE" if found.rehearsal and outcome in ("PASS", "FAIL") else outcome,
        figures=_count_accused(found, parts),
        counts=f"{found.asked:,} prompts, {found.requests:,} requests",
        cause=_explain(found, accused),
        statements=list(_describe(parts, accused)),
    )
    return Document(
        "attribute",
        f"serve-eval check workers {run}",
        found,
        conclusions=[conclusion],
        statements=list(_describe_answered(found)),
        blocks=list(_list_blocks(parts)),
        warnings=found.warnings[lost:],
        commands=list(_list_next(found)),
        suites=[_make_suite(found, parts)],
        result=run / ATTRIBUTE.result,
    )


def _list_parts(found: Attributed) -> list[tuple[str, Attribution]]:
    """Return what was compared, by name, as far as it says something."""
    named = (("alone", found.alone), ("in pairs", found.in_pairs), ("transfer", found.transfer))
    # One pair alone is compared with no other.
    return [
        (name, part)
        for name, part in named
        if part is not None and (part.rows or part is found.alone)
    ]


def _count_accused(found: Attributed, parts: Sequence[tuple[str, Attribution]]) -> str:
    """Return how many of the workers are worse than the others, and how many pairs."""
    rows = [row for _, part in parts for row in part.rows if row.accused]
    pairs = {row.worker for row in rows if row.role in ("pair", "transfer")}
    alone = {row.worker for row in rows} - pairs
    if not found.alone.joined:
        return f"none of {len(found.workers)} workers answered"
    if found.exit_code not in (PASS, FAIL):
        return ""
    said = f"{len(alone) or 'none'} of {len(found.workers)} workers is worse than the others"
    return f"{said}; {len(pairs)} of their pairs" if pairs else said


def _explain(found: Attributed, accused: Sequence[tuple[str, str]]) -> str:
    """Return the first accusation, or why nothing is known."""
    if accused:
        name, text = accused[0]
        return f"{name}: {text.removesuffix(_BETWEEN)}"
    if found.exit_code == INFRASTRUCTURE and found.warnings:
        return found.warnings[0]
    return "most answers are missing, or were cut" if found.exit_code == NOTHING_SCORED else ""


def _describe(
    parts: Sequence[tuple[str, Attribution]], accused: Sequence[tuple[str, str]]
) -> Iterator[Statement]:
    """Yield what each comparison says; an accusation that is the cause already is left out."""
    if any(text.endswith(_BETWEEN) for _, text in accused[:1]):
        yield Statement("look at", _BETWEEN.removeprefix(": "))
    for name, part in parts:
        for text in sentences(part):
            if (name, text) in accused[:1]:
                continue
            fact = text.startswith(_FACTS)
            yield Statement(
                name,
                text,
                depth=Depth.MORE if fact else Depth.FIRST,
                state="fail" if (name, text) in accused else "none",
            )


def _describe_answered(found: Attributed) -> Iterator[Statement]:
    for name, part in (("alone", found.alone), ("in pairs", found.in_pairs)):
        if part is not None:
            text = f"{name}: {part.joined} of {part.planned} requests were answered"
            depth = Depth.MORE if part.joined == part.planned else Depth.FIRST
            yield Statement("answered", text, depth=depth)
    for role, url in found.workers:
        yield Statement("worker", f"{role} {url}", depth=Depth.MORE)


def _list_blocks(parts: Sequence[tuple[str, Attribution]]) -> Iterator[Block]:
    """Yield a table for each comparison; the first screen has those that accuse, or the first."""
    accusing = [name for name, part in parts if any(row.accused for row in part.rows)]
    for i, (name, part) in enumerate(parts):
        rows = list_workers(part)
        first = name in accusing[:1] if accusing else i == 0
        if rows:
            depth = Depth.FIRST if first else Depth.MORE
            yield Block(_tabulate(name, rows), depth=depth)


def _tabulate(name: str, rows: Sequence[tuple[list[str], bool]]) -> DataTable:
    return DataTable(
        f"Bad answers: {name}",
        columns=[DataColumn(name, number=0 < i < 4) for i, name in enumerate(COLUMNS)],
        rows=[_list_cells(cells, accused=accused) for cells, accused in rows],
        caption=CAPTION,
    )


def _list_cells(cells: Sequence[str], *, accused: bool) -> list[DataCell]:
    role, worker, measure, answers, bad, others, others_bad, p = cells
    return [
        DataCell(worker, state="fail" if accused else "none"),
        DataCell(f"{bad} of {answers}", order=float(bad)),
        DataCell(f"{others_bad} of {others}", order=float(others_bad)),
        DataCell(p, order=float(p)),
        DataCell(role),
        DataCell(measure),
    ]


def _list_next(found: Attributed) -> Iterator[str]:
    """Yield the command that finds out whether an accused worker serves another model."""
    rows = [row for row in found.alone.rows if row.accused and not found.rehearsal]
    bad = {row.worker for row in rows}
    for row in rows[:1]:
        role = next((role for role, url in found.workers if url == row.worker), "")
        sound = [url for other, url in found.workers if other == role and url not in bad]
        if sound:
            model = f" --model {quote_argument(found.model)}" if found.model else ""
            yield f"serve-eval verify {sound[0]} {row.worker}{model}"


def _make_suite(found: Attributed, parts: Sequence[tuple[str, Attribution]]) -> CiSuite:
    """Return a case for each worker, and for each pair that was compared."""
    rows = [(name, row) for name, part in parts for row in part.rows]
    cases = []
    names = dict.fromkeys([url for _, url in found.workers] + [row.worker for _, row in rows])
    for worker in names:
        own = [(name, row) for name, row in rows if row.worker == worker]
        said = [
            f"{name}: {row.measure}: {row.bad} of {row.answers}, the others {row.others_bad} of"
            f" {row.others}, p {row.p_holm:.2g}"
            for name, row in own
        ]
        worse = [text for text, (_, row) in zip(said, own, strict=True) if row.accused]
        known = found.exit_code in (PASS, FAIL)
        sound = CiState.PASSED if known else CiState.SKIPPED
        cases.append(
            CiCase(
                "attribute",
                worker,
                state=CiState.FAILURE if worse else sound,
                message="; ".join(worse),
                details=said,
            )
        )
    return CiSuite("serve-eval check workers", cases, seconds=found.wall_s)
