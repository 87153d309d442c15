"""Import results of other tools as references, under the protocol that their files hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from serve_eval.errors import ReferenceFileError, ServeEvalError
from serve_eval.frozen import freeze
from serve_eval.plan.command_line import write_run_command
from serve_eval.plugins.scope import with_scope
from serve_eval.report.document import Conclusion, Depth, Document, Statement, make_header
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.report.summary.figures import write_number
from serve_eval.schema import DataRoots, Plan, Spec
from serve_eval.shell_words import join_words, quote_path
from serve_eval.verdicts import references
from serve_eval.workflows.references.entries import make_folder, write_entry, write_runs
from serve_eval.workflows.references.imports.files import FoundResult
from serve_eval.workflows.references.imports.recognise import read_source
from serve_eval.workflows.references.imports.task_match import (
    PROMPTS,
    ComparedPrompts,
    ImportedTask,
    NamedTask,
    build_imported,
    compare_prompts,
    digest_all,
    find_task,
)

HOST = "http://HOST:8000/v1"
"""Stands in a command for the address of the endpoint under test."""


@freeze
class ImportedReference:
    """A reference that was imported.

    `value` is in the unit of the metric, over `count` prompts (None: unknown). `prompts` says
    whether they are ours, and `paired` whether the scores of single answers are kept. `unknown` are
    the fields of our protocol that the files do not hold. `refused` is the field by which a run is
    refused that does not allow it ("": none). `use` is the command of a run under this protocol.
    """

    task: str
    model: str
    file: Path
    scores: Path | None
    value: float
    count: int | None
    source: str
    protocol: Mapping[str, Any]
    prompts: str
    paired: bool
    unknown: tuple[str, ...]
    refused: str
    use: str
    remarks: tuple[str, ...]


@freeze
class ImportedResults:
    """The references that were written, and why others were not."""

    written: tuple[ImportedReference, ...]
    lost: tuple[str, ...]


@with_scope
def import_results(
    source: Path,
    references_dir: Path,
    *,
    tasks: Mapping[str, str],
    model: str | None = None,
    dataset_roots: Sequence[str] = (),
    reason: str | None = None,
) -> ImportedResults:
    """Write a reference for each task and model in a file, or in all files below a folder.

    `tasks` names tasks here by those of the tool, and `model` replaces the model of the files. Of
    several results of a task and a model, the newest counts. An entry that exists is replaced only
    with a `reason`.

    Raises ReferenceFileError, with the file and the cause, if nothing can be imported.
    """
    found, problems = read_source(source)
    chosen, older = _keep_newest(found, model)
    written: list[ImportedReference] = []
    lost: list[str] = []
    errors: list[ServeEvalError] = []
    for result in chosen:
        try:
            known = find_task(result, tasks)
            written.append(
                _import(result, known, references_dir, model, tuple(dataset_roots), reason)
            )
        except ServeEvalError as error:
            errors.append(error)
            lost.append(f"{result.task}: {error}")
    lost += [*problems, *older]
    if not written:
        if len(errors) == len(lost) == 1:
            raise errors[0]
        raise ReferenceFileError(
            "\n".join([f"{source}: nothing was imported", *lost[:20]]),
            hint=next((one.hint for one in errors if one.hint), ""),
        )
    return ImportedResults(written=tuple(written), lost=tuple(lost))


def _keep_newest(
    found: Sequence[FoundResult], model: str | None
) -> tuple[list[FoundResult], list[str]]:
    """Return the newest result of each task and model, and a line about each older one."""
    ordered = sorted(found, key=lambda one: (one.date or "", one.file.name), reverse=True)
    kept: dict[tuple[str, str, str | None], FoundResult] = {}
    older = []
    for one in ordered:
        first = kept.setdefault((one.family, one.task, model or one.model), one)
        if first is not one:
            older.append(f"{one.file}: {one.task}: {first.file.name} has a newer result")
    return [one for one in found if one in kept.values()], older


def _import(
    result: FoundResult,
    known: NamedTask,
    references_dir: Path,
    given: str | None,
    roots: tuple[str, ...],
    reason: str | None,
) -> ImportedReference:
    model = given or result.model
    if model is None:
        raise ReferenceFileError(
            f"{result.file}: does not say which model was asked",
            hint="Name the model as the endpoint serves it: --model NAME",
        )
    made, compared = _compare(result, known, DataRoots(roots=tuple(map(Path, roots))))
    protocol, refused = _choose_protocol(result, known, made, compared)
    task, scale = made.task, made.task.metric.scale
    value = scale * math.fsum(result.scores[name] for name in made.scores) / len(made.scores)
    remarks = [*result.remarks]
    entry: dict[str, Any] = {references.value_key(task.metric.name): round(value, 6)}
    paired = bool(compared.runs) and (task.metric.lo, task.metric.hi) == (0.0, 1.0)
    count = result.count
    make_folder(references_dir)
    if paired:
        entry["runs"] = write_runs(task, compared.samples, model, compared.runs, references_dir)
        count = entry["runs"]["n"]
        mean = math.fsum(entry["runs"]["values"]) / len(entry["runs"]["values"])
        if abs(mean - value) > 0.005 * scale / 100:
            remarks.append(f"the file says {value:.3f}; the mean of its answers is {mean:.3f}")
        value = entry[references.value_key(task.metric.name)] = round(mean, 6)
    elif count is not None and count != task.hypothesis.num_samples:
        entry["num_samples"] = count
    told = f"{references.IMPORTED}{result.tool}, {result.task}, {result.file.name}"
    entry |= {
        "protocol": protocol,
        "source": told,
        "date": result.date or datetime.now(UTC).date().isoformat(),
    }
    file = references_dir / f"{task.reference_file}.yaml"
    write_entry(file, model, {}, entry, reason)
    return ImportedReference(
        task=task.name,
        model=model,
        file=file,
        scores=references_dir / entry["runs"]["samples"] if paired else None,
        value=value,
        count=count,
        source=told.removeprefix(references.IMPORTED),
        protocol=protocol,
        prompts=compared.text,
        paired=paired,
        unknown=tuple(made.list_unknown(protocol)),
        refused=refused,
        use=_write_use(made, model, roots, references_dir),
        remarks=tuple(remarks),
    )


def _compare(
    result: FoundResult, known: NamedTask, roots: DataRoots
) -> tuple[ImportedTask, ComparedPrompts]:
    """Return our task under the protocol of a result, with the comparison of the prompts.

    If the files lack the number of shots, it is 0 if the prompts equal ours without shots.
    """
    made = build_imported(result, known)
    compared = compare_prompts(result, made, roots)
    if compared.equal is False and "num_fewshot" in set(made.task.protocol) - set(made.told):
        told = {**result.told, "num_fewshot": 0}
        plain = build_imported(replace(result, told=told), known)
        again = compare_prompts(result, plain, roots)
        if again.equal:
            return plain, again
    return made, compared


def _choose_protocol(
    result: FoundResult, known: NamedTask, made: ImportedTask, compared: ComparedPrompts
) -> tuple[dict[str, Any], str]:
    """Return the protocol of a reference, and the field that refuses runs.

    Prompts that are known to be others are a field that no task has.
    """
    if compared.equal:
        return made.complete(), ""
    protocol = dict(made.told)
    if compared.equal is False:
        digest = digest_all(result.samples or ())
        protocol[PROMPTS] = f"{digest} of {result.tool} {result.task}"
    elif not known.alike:
        protocol[PROMPTS] = f"those of {result.tool} {result.task}"
    return protocol, PROMPTS if PROMPTS in protocol else ""


def _write_use(made: ImportedTask, model: str, roots: tuple[str, ...], references_dir: Path) -> str:
    """Return the command of a run that asks as the reference was asked, as far as is known."""
    plan = Plan(
        model=model,
        launcher=Spec(name="external", options={"base_url": HOST}),
        tasks=(made.spec,),
        dataset_roots=roots,
    )
    return write_run_command(plan, str(references_dir))


IMPORTED = "WRITTEN"
MOST_LOST = 5
"""Lines about what was not imported on the first screen."""


def make_document(found: ImportedResults, source: Path, to: Path) -> Document:
    """Return the document of an import: each reference, what is unknown of it, and what is lost."""
    lost = [
        Statement(
            "lost",
            text,
            state="warn",
            depth=Depth.FIRST if number < MOST_LOST else Depth.MORE,
        )
        for number, text in enumerate(found.lost)
    ]
    if len(found.lost) > MOST_LOST:
        more = f"{len(found.lost) - MOST_LOST} more results, which -v shows"
        lost.append(Statement("lost", more, state="warn"))
    first = found.written[0]
    return Document(
        "references",
        f"serve-eval references import {quote_path(source)}",
        make_header(0),
        conclusions=[_conclude(one) for one in found.written],
        model=first.model,
        overview=_tabulate_written(found.written) if len(found.written) > 1 else None,
        statements=[Statement("into", str(to)), *lost],
        commands=[
            first.use,
            f"{join_words(['serve-eval', 'references', 'show', first.file.stem])}"
            f" --references-dir {quote_path(to)}",
        ],
    )


def _tabulate_written(written: Sequence[ImportedReference]) -> DataTable:
    """Return the table of several references: what is known of each, and what refuses runs."""
    names = ("task", "model", "value", "prompts", "unknown", "refused for")
    rows = [
        [
            one.task,
            one.model,
            write_number(one.value),
            "" if one.count is None else f"{one.count:,}",
            ", ".join(one.unknown),
            one.refused,
        ]
        for one in written
    ]
    return DataTable(
        "References",
        columns=[DataColumn(name, number=i in (2, 3)) for i, name in enumerate(names)],
        rows=[[DataCell(text) for text in row] for row in rows],
    )


def _conclude(one: ImportedReference) -> Conclusion:
    over = "" if one.count is None else f" over {one.count:,} prompt{'s' * (one.count != 1)}"
    return Conclusion(
        one.task,
        IMPORTED,
        figures=f"{write_number(one.value)}{over}  {one.model}",
        statements=list(_describe(one)),
    )


def _describe(one: ImportedReference) -> Iterator[Statement]:
    yield Statement("from", one.source)
    yield Statement("prompts", one.prompts)
    kept = "kept: the verdict of a run of these prompts is paired" if one.paired else "not kept"
    yield Statement("scores", kept)
    if one.unknown:
        yield Statement("unknown", ", ".join(one.unknown), state="warn")
    if one.refused:
        text = (
            f"a run is refused for {one.refused}, which are not ours, unless it has"
            f" --allow-mismatch {one.refused}"
        )
        yield Statement("protocol", text, state="warn")
    known = "; ".join(f"{name} {value!r}" for name, value in one.protocol.items())
    yield Statement("known", known, depth=Depth.MORE)
    for text in one.remarks:
        yield Statement("note", text, state="warn")
    yield Statement("file", str(one.file), depth=Depth.MORE)
