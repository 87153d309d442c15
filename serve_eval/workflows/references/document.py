"""Make the document of references that were registered. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from serve_eval.report.document import Conclusion, Depth, Document, Statement, make_header
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.report.real_size import write_number
from serve_eval.shell_words import join_words, quote_path
from serve_eval.workflows.references.register import Registered
from serve_eval.workflows.references.shown import count_runs

REGISTERED = "REGISTERED"


def make_document(
    written: Sequence[Registered],
    references_dir: Path,
    *,
    command: str,
    use: str,
    endpoint: str = "",
    folder: Path | None = None,
) -> Document:
    """Return the document of references: their values, runs and files, and how to use them.

    `command` names what was done, and `use` is the command that judges a run by them. `folder`
    holds the runs, if they were asked for this.
    """
    return Document(
        story="references",
        command=command,
        header=make_header(0),
        conclusions=[_conclude(one) for one in written],
        outcome="" if written else REGISTERED,
        overview=_compare(written) if len(written) > 1 else None,
        model=written[0].model if written else "",
        endpoint=endpoint,
        statements=list(_describe_all(written, folder)),
        warnings=_list_warnings(written),
        commands=list(_list_next(written, references_dir, use)),
    )


def _conclude(one: Registered) -> Conclusion:
    value = write_number(one.value)
    return Conclusion(
        name=one.task,
        outcome=REGISTERED,
        figures=f"{value}, the mean of {count_runs(one.runs, one.samples)}",
        statements=list(_describe(one)),
    )


def _compare(written: Sequence[Registered]) -> DataTable:
    """Return the table of several references."""
    names = ("task", "value", "runs", "samples", "runs disagree on")
    rows = [
        [
            one.task,
            write_number(one.value),
            str(one.runs),
            f"{one.samples:,}",
            "" if one.flip_rate is None else _write_share(one.flip_rate),
        ]
        for one in written
    ]
    kept = len(names) if any(row[-1] for row in rows) else len(names) - 1
    return DataTable(
        title="References",
        columns=[DataColumn(name=name, number=i > 0) for i, name in enumerate(names[:kept])],
        rows=[[DataCell(text=text) for text in row[:kept]] for row in rows],
    )


def _describe(one: Registered) -> Iterator[Statement]:
    """Yield what was registered: the runs, their seeds, the file, the place, and the old entry."""
    values = ", ".join(map(write_number, one.values))
    noise = ""
    if one.flip_rate == 0:
        noise = "; all runs agree on every prompt"
    elif one.flip_rate is not None:
        noise = f"; two runs disagree on {_write_share(one.flip_rate)} of the prompts"
    yield Statement(label="runs", text=f"{values}{noise}")
    yield Statement(label="seeds", text=one.seeds)
    if one.taken:
        yield Statement(label="taken at", text=one.taken)
    if one.reason:
        text = f"an older entry, which is kept in the new one: {one.reason}"
        yield Statement(label="replaced", text=text)
    yield Statement(label="file", text=str(one.file), depth=Depth.MORE)
    if one.scores is not None:
        yield Statement(label="scores", text=str(one.scores), depth=Depth.MORE)


def _write_share(share: float) -> str:
    return f"{write_number(100 * share, 2)} %" if share else "0 %"


def _describe_all(written: Sequence[Registered], folder: Path | None) -> Iterator[Statement]:
    """Yield what is to be committed, and the folder of the runs, which is not needed for it."""
    yield Statement(label="commit", text=_list_files(written), keep=True)
    if folder is not None:
        yield Statement(label="folder", text=f"{folder} holds the runs")


def _list_files(written: Sequence[Registered]) -> str:
    """Return what is to be committed: the entries, and the folder of the scores of every sample."""
    folders = dict.fromkeys(str(one.scores.parent) for one in written if one.scores is not None)
    found = [*dict.fromkeys(str(one.file) for one in written), *folders]
    return " and ".join(filter(None, (", ".join(found[:-1]), *found[-1:])))


def _list_warnings(written: Sequence[Registered]) -> list[str]:
    """Return all warnings, equal ones once, each with its tasks if there are several."""
    named: dict[str, list[str]] = {}
    for one in written:
        for line in one.warnings:
            named.setdefault(line, []).append(one.task)
    alone = len(written) == 1
    return [
        line if alone or len(tasks) == len(written) else f"{', '.join(tasks)}: {line}"
        for line, tasks in named.items()
    ]


def _list_next(written: Sequence[Registered], references_dir: Path, use: str) -> Iterator[str]:
    """Yield the command that judges by the references, and the one that shows them."""
    yield use
    for one in written[:1]:
        words = ["serve-eval", "references", "show", one.file.stem, "--model", one.model]
        yield f"{join_words(words)} --references-dir {quote_path(references_dir)}"
