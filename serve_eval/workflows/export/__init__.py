"""Export a finished run in the file format of another tool, with a document of it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import datetime
from functools import partial
from os.path import commonpath
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.client.wire_format.wire import write_turn
from serve_eval.errors import DatasetError, RunFolderError
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.results.scoring import Recipe, rebuilt
from serve_eval.evaluation.task_run import recipe_of
from serve_eval.evaluation.trust import to_read
from serve_eval.frozen import freeze
from serve_eval.harness.layout import (
    NO_FILTER,
    Judged,
    Logged,
    Row,
    RowsHash,
    build_log,
    file_name,
    mean_stderr,
    results,
    row,
    stamp,
    write_json,
)
from serve_eval.harness.measures import list_results, measure_document
from serve_eval.plan.prepared_task import PreparedTask, request_of
from serve_eval.plugins.scope import with_scope
from serve_eval.processes.bounded_call import Apart, Unfinished
from serve_eval.protocol.conversation import change_prompt
from serve_eval.report.document import Block, Conclusion, Depth, Document, Statement, make_header
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.schema import (
    HOLDOUT,
    MEAN,
    Message,
    Plan,
    Report,
    Response,
    Sample,
    Task,
    TaskResult,
)
from serve_eval.schema.media import describe_turn
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import LM_EVAL as LM_EVAL_FOLDER
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.journal import StoredResponses
from serve_eval.storage.json_files import replace_private, write_private
from serve_eval.storage.report_file import read_report
from serve_eval.storage.scores import ScoreRecord, read_scores

LM_EVAL = "lm_eval:"


@freeze
class Exported:
    """The files that were written, the rows of each, and what was left out and why."""

    files: tuple[Path, ...]
    rows: Mapping[Path, int]
    notes: tuple[str, ...]


@with_scope
def export(run: Path, to: Path | None = None, *, include_path: Sequence[str] = ()) -> Exported:
    """Write results_<time>.json and one samples_<task>_<time>.jsonl per task in lm-eval's layout.

    The files go to a folder named after the model, below `to`. The time is the start of the run, so
    the same run always gives the same files. `include_path` lists folders with code that may be
    loaded; the saved plan alone does not permit that.

    Raises RunFolderError for a run without a report, and DatasetError if the samples differ from
    those of the run.
    """
    saved, prints = to_read(run, include_path), run_folder.read_fingerprints(run)
    report = read_report(run)
    told = {task.result.task: task.result for task in report.tasks}
    prepared = prepare(replace(saved, no_reference=True))
    for p in prepared:
        if p.fingerprint["samples"] != prints.get(p.task.name, {}).get("samples"):
            raise DatasetError(
                f"{p.task.name}: the data differs from the data of {run}",
                hint="Restore the data that the run used.",
            )
    started = datetime.fromisoformat(report.started_at)
    model = str(report.endpoint.model or saved.model)
    folder, when = (to or run / LM_EVAL_FOLDER) / file_name(model), stamp(started)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"{folder}: cannot write: {error.strerror}", hint="Choose another with -o."
        ) from error
    files = [folder / f"results_{when}.json"]
    logged: list[Logged] = []
    rows: dict[Path, int] = {}
    notes: list[str] = []
    for p in prepared:
        files.append(folder / f"samples_{file_name(_name(p))}_{when}.jsonl")
        times = saved.times(p.task.name)
        one, more = _write_log(saved, run, p, told[p.task.name], times, files[-1])
        notes += more
        if times > 1 and p.task.name.startswith(LM_EVAL):
            notes.append(
                f"{one.task}: only the first of {times} answers to each document is exported"
            )
        logged.append(one)
        rows[files[-1]] = one.answered
        if one.answered < one.planned:
            notes.append(
                f"{one.task}: {one.answered} of {one.planned} samples have a score; the others"
                " are not exported"
            )
    content = results(
        logged,
        model=model,
        model_args=f"model={model},base_url={report.endpoint.base_url}",
        about=_about(report, started),
    )
    write_private(files[0], write_json(content, indent=2).encode())
    return Exported(files=tuple(files), rows=rows, notes=tuple(notes))


def _about(report: Report, started: datetime) -> dict[str, Any]:
    """Return what lm-eval records about the machine and the time, as far as the run has it."""
    environment: Mapping[str, Any] = report.environment
    return {
        "date": started.timestamp(),
        "total_evaluation_time_seconds": str(report.wall_s),
        "start_time": started.timestamp(),
        "end_time": started.timestamp() + report.wall_s,
        "pretty_env_info": (
            f"serve-eval {environment['serve_eval']}, Python {environment['python']}, "
            f"{environment['platform']}"
        ),
        "transformers_version": "N/A",
        "lm_eval_version": environment["packages"].get("lm-eval", "N/A"),
    }


def _name(prepared: PreparedTask) -> str:
    """Return the task's name in the files."""
    name = prepared.task.name
    return name.removeprefix(LM_EVAL) if name.startswith(LM_EVAL) else prepared.task.file_stem


def _write_log(
    saved: Plan, run: Path, prepared: PreparedTask, result: TaskResult, repeats: int, file: Path
) -> tuple[Logged, tuple[str, ...]]:
    """Write the samples of a task. Return its log, and remarks for its reader."""
    name, journal = prepared.task.name, samples_file(run, prepared.task.name)
    write = partial(_write_rows, file)
    with ExitStack() as stack:
        responses: Mapping[str, Response] = (
            stack.enter_context(closing(StoredResponses(journal))) if journal.exists() else {}
        )
        if name.startswith(LM_EVAL):
            return _of_lm_eval(saved, prepared, responses, write)
        scores = read_scores(run, name, unfinished=True)
        return write_own(prepared, result, responses, scores, repeats, write), ()


def _write_rows(file: Path, rows: Iterable[Row]) -> str:
    """Write rows, which are held one at a time, and return their hash."""
    found = RowsHash()
    with replace_private(file) as out:
        for line in rows:
            out.write(f"{write_json(line)}\n".encode())
            found.add(line)
    return str(found)


def _of_lm_eval(
    saved: Plan,
    prepared: PreparedTask,
    responses: Mapping[str, Response],
    write: Callable[[Iterable[Row]], str],
) -> tuple[Logged, tuple[str, ...]]:
    """Judge a task of lm-eval as in a run: in a separate process with a time limit."""
    from serve_eval.tasks.lm_eval import load_parts

    name = prepared.task.name.removeprefix(LM_EVAL)
    here, measures = load_parts(name, prepared.spec.options)
    maker = (_build_measure, (recipe_of(saved, prepared.spec, prepared.wanted),))
    results = {
        sample.id: list_results(here, responses[sample.id])
        for sample in prepared.dataset.samples
        if sample.id in responses
    }
    judged: dict[str, Judged] = {}
    why: list[str] = []
    with Apart({name: maker}, limit_s=saved.limits.scorer_timeout_s) as apart:
        futures = {doc: apart.submit(name, doc, given) for doc, given in results.items()}
        for doc, future in futures.items():
            found = future.result()
            if isinstance(found, Unfinished):
                why.append(found.told)
            else:
                judged[doc] = Judged(results=results[doc], found=found[0], filtered=found[1])
    notes = (
        (f"{name}: {len(why)} answers cannot be scored and are not exported: {why[0]}",)
        if why
        else ()
    )
    planned = len(prepared.dataset.samples)
    return build_log(name, here, measures, judged, planned=planned, write=write), notes


def _build_measure(recipe: Recipe) -> Callable[[str, Sequence[Any]], Any]:
    """Rebuild a task of lm-eval, and return the function that scores an answer to a document."""
    from serve_eval.tasks.lm_eval import load_parts

    rebuilt(recipe)
    here, _ = load_parts(recipe.spec.name.removeprefix(LM_EVAL), recipe.spec.options)
    return partial(measure_document, here)


_HIDDEN = "(of a hold-out set)"


def write_own(
    prepared: PreparedTask,
    result: TaskResult,
    responses: Mapping[str, Response],
    scores: Mapping[str, ScoreRecord],
    repeats: int,
    write: Callable[[Iterable[Row]], str],
) -> Logged:
    """Write the samples of a task of serve-eval, and return its log.

    The score and its parts are the metrics. The repeats of a sample are its responses.
    """
    task, metric, values = prepared.task, prepared.task.metric, array("d")

    def make_rows() -> Iterator[Row]:
        for number, sample in enumerate(prepared.dataset.samples):
            ids = (sample.id, *(f"{sample.id}#{repeat}" for repeat in range(2, repeats + 1)))
            keys = [key for key in ids if key in responses and key in scores]
            if not keys:
                continue
            had = [scores[key] for key in keys]
            named = {metric.name: _mean([score.value for score in had])}
            named |= {part: _mean([score.parts[part] for score in had]) for part in had[0].parts}
            values.append(named[metric.name])
            asked, resps, left = _requests(task, sample, [responses[key] for key in keys], had)
            shared = {"group": sample.group} if sample.group else {}
            document = {"id": sample.id, "target": sample.target, **shared, **sample.metadata}
            yield row(number, document, sample.target, asked, resps, left, NO_FILTER, named)

    rows_hash = write(make_rows())
    plain = result.aggregation == MEAN.name
    figures = {metric.name: result.value / metric.scale} if result.value is not None else {}
    figures |= {part: value / metric.scale for part, value in result.parts.items()}
    figures |= {name: value for name, value in result.secondary.items() if name not in figures}
    options = {name: value for name, value in task.protocol.items() if value is not None}
    return Logged(
        task=task.file_stem,
        version=task.version,
        num_fewshot=int(str(task.protocol.get("num_fewshot") or 0)),
        config={
            "task": task.file_stem,
            **options,
            "output_type": _name_requests(prepared),
            "metric_list": [
                {
                    "metric": metric.name,
                    "aggregation": result.aggregation,
                    "higher_is_better": metric.higher_is_better,
                }
            ],
            "metadata": {"version": task.version},
        },
        values={(name, NO_FILTER): value for name, value in figures.items()},
        stderrs={(metric.name, NO_FILTER): mean_stderr(values) if plain else None},
        higher_is_better={metric.name: metric.higher_is_better},
        planned=len(prepared.dataset.samples),
        answered=len(values),
        rows_hash=rows_hash,
    )


def _name_requests(prepared: PreparedTask) -> str:
    """Return lm-eval's name for the kind of requests, by which its own scripts read the rows."""
    if any(sample.choices for sample in prepared.dataset.samples):
        return "multiple_choice"
    return "loglikelihood_rolling" if prepared.task.prompt_logprobs else "generate_until"


def _requests(
    task: Task, sample: Sample, responses: Sequence[Response], scores: Sequence[ScoreRecord]
) -> tuple[list[list[Any]], list[list[Any]], list[Any]]:
    """Return what was asked, what came back and what was extracted, per request.

    For a hold-out set, the question and the answer are left out, since the answer may be the right
    one and these files are made for sharing.
    """
    if sample.choices:
        asked: list[list[Any]] = [list(pair) for pair in sample.continued]
        told = [response.choice_logprobs or () for response in responses]
        sums = [[[sum(one[i]), None] for one in told] for i in range(len(asked))]
        return asked, sums, [one[0] for one in sums]
    if sample.conversation is not None:
        sample = change_prompt(sample, responses[0].exchanges or ())
    prompt = (
        sample.prompt
        if isinstance(sample.prompt, str)
        else [write_json(list(map(_turn, map(describe_turn, sample.prompt))))]
    )
    if task.prompt_logprobs:
        totals = [
            sum(response.prompt_logprobs.values)
            for response in responses
            if response.prompt_logprobs
        ]
        return [[prompt]], [totals], [totals[0] if totals else None]
    sampling = request_of(task, sample).sampling
    given = {
        "until": list(sampling.stop),
        "max_gen_toks": sampling.max_tokens,
        "temperature": sampling.temperature,
        "do_sample": bool(sampling.temperature),
    }
    answers = [score.answer or "" for score in scores]
    if HOLDOUT in sample.metadata:
        return (
            [[_HIDDEN, given]],
            [[_HIDDEN] * len(responses)],
            answers[:1] if len(answers) == 1 else answers,
        )
    return (
        [[prompt, given]],
        [[response.text for response in responses]],
        answers[:1] if len(answers) == 1 else answers,
    )


def _turn(message: Message) -> Any:
    return msgspec.to_builtins(write_turn(message))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


WRITTEN = "WRITTEN"


def make_document(
    to_format: str,
    files: Sequence[Path],
    *,
    runs: Sequence[Path],
    rows: Mapping[Path, int],
    left_out: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Document:
    """Return the document of an export: its files with their rows, and what was left out and why.

    `notes` are remarks that the files have too. Without `files` it went to standard output.
    """
    number = sum(rows.values())
    place = Path(commonpath([file.parent for file in files] or [Path()]))
    if len(files) == 1:
        where = f" in {files[0]}"
    elif files:
        where = f" in {len(files)} files below {place}"
    else:
        where = ""
    conclusion = Conclusion(
        to_format,
        WRITTEN,
        figures=f"{number:,} row{'s' * (number != 1)}{where}",
        statements=[
            Statement("from", ", ".join(map(str, runs))),
            *(Statement("note", note, depth=Depth.MORE) for note in notes),
        ],
    )
    return Document(
        "export",
        f"serve-eval runs export --format {to_format}",
        make_header(0),
        conclusions=[conclusion],
        blocks=[_tabulate(files, rows, place)] if len(files) > 1 else [],
        warnings=list(left_out),
    )


def _tabulate(files: Sequence[Path], rows: Mapping[Path, int], place: Path) -> Block:
    """Return the table of several files below a folder. One without samples has no rows."""
    section = DataTable(
        "Files",
        columns=[DataColumn("rows", number=True), DataColumn("file")],
        rows=[
            [
                DataCell(f"{rows[file]:,}" if file in rows else "-"),
                DataCell(str(file.relative_to(place))),
            ]
            for file in files
        ],
    )
    return Block(section, depth=Depth.FIRST)
