"""Make the documents of references: registered ones, and the entries and problems of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from serve_eval.report.ci_result import CiCase, CiState, CiSuite
from serve_eval.report.document import Block, Conclusion, Depth, Document, Statement, make_header
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.report.summary.figures import write_number
from serve_eval.shell_words import join_words, quote_argument, quote_path
from serve_eval.workflows.references import Registered
from serve_eval.workflows.references.import_published import ImportReport
from serve_eval.workflows.references.shown import CheckedFile, ShownEntry, ShownFile, count_runs

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
        "references",
        command,
        make_header(0),
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
        one.task,
        REGISTERED,
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
        "References",
        columns=[DataColumn(name, number=i > 0) for i, name in enumerate(names[:kept])],
        rows=[[DataCell(text) for text in row[:kept]] for row in rows],
    )


def _describe(one: Registered) -> Iterator[Statement]:
    """Yield what was registered: the runs, their seeds, the file, the place, and the old entry."""
    values = ", ".join(map(write_number, one.values))
    noise = ""
    if one.flip_rate == 0:
        noise = "; all runs agree on every prompt"
    elif one.flip_rate is not None:
        noise = f"; two runs disagree on {_write_share(one.flip_rate)} of the prompts"
    yield Statement("runs", f"{values}{noise}")
    yield Statement("seeds", one.seeds)
    if one.taken:
        yield Statement("taken at", one.taken)
    if one.reason:
        text = f"an older entry, which is kept in the new one: {one.reason}"
        yield Statement("replaced", text)
    yield Statement("file", str(one.file), depth=Depth.MORE)
    if one.scores is not None:
        yield Statement("scores", str(one.scores), depth=Depth.MORE)


def _write_share(share: float) -> str:
    return f"{write_number(100 * share, 2)} %" if share else "0 %"


def _describe_all(written: Sequence[Registered], folder: Path | None) -> Iterator[Statement]:
    """Yield what is to be committed, and the folder of the runs, which is not needed for it."""
    yield Statement("commit", _list_files(written), keep=True)
    if folder is not None:
        yield Statement("folder", f"{folder} holds the runs")


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


FOUND, IMPORTED = "FOUND", "WRITTEN"
"""Outcomes of what lists files, and of an import."""
FEW = 2
"""Entries of which the first screen has all facts."""
USUAL = "default"
"""The text of a specification without a field."""
PROBLEM = 2
"""Exit code for files with problems."""


def make_list_document(files: Sequence[ShownFile], flags: str) -> Document:
    """Return the document of all reference files. `flags` name the folder of the user's own."""
    largest = max(files, key=lambda one: one.entries, default=None)
    entries = sum(one.entries for one in files)
    folders = dict.fromkeys(str(one.folder) for one in files)
    columns = ("file", "models", "entries", *(("folder",) if len(folders) > 1 else ()))
    rows = [
        [one.name, f"{one.models:,}", f"{one.entries:,}", str(one.folder)][: len(columns)]
        for one in files
    ]
    conclusion = Conclusion(
        "reference files",
        FOUND,
        figures=f"{len(files)} with {entries:,} entries",
        statements=[Statement("folder", folder) for folder in folders],
    )
    return Document(
        "references",
        "serve-eval references list",
        make_header(0),
        conclusions=[conclusion],
        blocks=[_tabulate("Reference files", columns, rows, Depth.FIRST, numbers=(1, 2))],
        commands=[]
        if largest is None
        else [f"serve-eval references show {quote_argument(largest.name)}{flags}"],
    )


def make_entries_document(task: str, entries: Sequence[ShownEntry], flags: str) -> Document:
    """Return the document of the entries of a file, in the order of their trial."""
    models = list(dict.fromkeys(one.name for one in entries))
    few = len(entries) <= FEW
    if len(entries) == 1:
        about = f"{_write_value(entries[0])}  {models[0]}"
    else:
        of = f"{len(models):,} models" if len(models) > 1 else models[0]
        about = f"{len(entries):,} entries of {of}"
    conclusion = Conclusion(
        task,
        FOUND,
        figures=about,
        statements=[
            *(row for one in entries for row in _describe_entry(one, len(entries))),
            *([] if few else _join_fields(entries)),
        ],
    )
    weak = sum(bool(one.warnings) for one in entries)
    words = ["serve-eval", "references", "show", task]
    return Document(
        "references",
        join_words(words),
        make_header(0),
        conclusions=[conclusion],
        statements=[] if few or not weak else [_count_weak(weak)],
        blocks=[] if len(entries) == 1 else [_list_values(entries)],
        commands=[f"{join_words([*words, '--model', models[0]])}{flags}"] * (len(models) > 1),
    )


def _count_weak(weak: int) -> Statement:
    entries = "1 entry has a warning" if weak == 1 else f"{weak} entries have a warning"
    return Statement("weak", f"{entries}, which -v shows", state="warn")


def _describe_entry(one: ShownEntry, number: int) -> Iterator[Statement]:
    """Yield what an entry has next to its value, on the first screen if it is one of a few."""
    few = number <= FEW
    depth = Depth.FIRST if few else Depth.MORE
    about = "" if number == 1 else f"{_name(one)}: "
    if number == 1 and one.spec:
        yield Statement("for", one.spec)
    for label, text in one.facts:
        yield Statement(label, f"{about}{text}", depth=depth)
    for text in one.warnings:
        yield Statement("warning", f"{about}{text}", depth=depth, state="warn")
    if few and one.details:
        yield Statement("entry", f"{about}{', '.join(one.details)}")


def _join_fields(entries: Sequence[ShownEntry]) -> Iterator[Statement]:
    """Yield the other fields of many entries, equal ones once with the names of their entries."""
    alike: dict[str, list[str]] = {}
    for one in entries:
        if one.details:
            alike.setdefault(", ".join(one.details), []).append(_name(one))
    for fields, names in alike.items():
        yield Statement("fields", f"{fields}: {'; '.join(names)}", depth=Depth.MORE)


def _list_values(entries: Sequence[ShownEntry]) -> Block:
    """Return the table of the values."""
    if any(one.least is not None for one in entries):
        lengths = [
            [one.name, write_number(one.value, 4), write_number(one.least or 0.0, 4)]
            for one in entries
        ]
        names = ("test", "reference", "least")
        return _tabulate("Entries", names, lengths, Depth.FIRST, numbers=(1, 2))
    values = [[write_number(one.value), _name(one)] for one in entries]
    columns = ("value", "model and specification")
    return _tabulate("Entries", columns, values, Depth.FIRST, numbers=(0,))


def _name(one: ShownEntry) -> str:
    spec = "" if one.spec == USUAL else one.spec
    return " ".join(filter(None, (one.name, spec)))


def _write_value(one: ShownEntry) -> str:
    if one.least is None:
        return write_number(one.value)
    return f"reference {write_number(one.value, 4)}, least {write_number(one.least, 4)}"


def make_check_document(path: Path, checked: Sequence[CheckedFile]) -> Document:
    """Return the document of files that were checked: every problem, and the runs they hold."""
    problems = [line for one in checked for line in one.problems]
    files = f"{len(checked)} file{'s' * (len(checked) != 1)}"
    found = f"{len(problems)} problem{'s' * (len(problems) != 1)}" if problems else "no problem"
    conclusion = Conclusion(
        str(path),
        "FAIL" if problems else "PASS",
        figures=f"{found} in {files}",
        statements=[
            *(Statement("error", line, state="fail") for line in problems),
            *(Statement("runs", line, depth=Depth.MORE) for one in checked for line in one.runs),
        ],
    )
    cases = [
        CiCase(
            "references.check",
            str(one.file),
            state=CiState.FAILURE if one.problems else CiState.PASSED,
            message="; ".join(one.problems[:1]),
            details=one.problems,
        )
        for one in checked
    ]
    return Document(
        "references",
        f"serve-eval references check {quote_path(path)}",
        make_header(PROBLEM if problems else 0),
        conclusions=[conclusion],
        warnings=[line for one in checked for line in one.warnings],
        suites=[CiSuite("serve-eval references check", cases)],
    )


def make_import_document(found: ImportReport, source: Path, to: Path) -> Document:
    """Return the document of an import: its files, the entries that are lost, and oddities."""
    entries = sum(count.written for count in found.counts.values())
    old = sum(count.written for file, count in found.counts.items() if file.startswith("older/"))
    others = [line for line in found.oddities if line not in found.lost]
    conclusion = Conclusion(
        f"{len(found.written)} file{'s' * (len(found.written) != 1)}",
        IMPORTED,
        figures=f"{entries:,} entries, {old:,} of them old",
        statements=[
            Statement("files", f"{len(found.new)} new, {len(found.updated)} updated"),
            Statement("from", f"{source} into {to}"),
            *(Statement("lost", line, state="warn") for line in found.lost),
            *(Statement("odd", line, depth=Depth.MORE) for line in others),
        ],
    )
    return Document(
        "references",
        f"serve-eval references import {quote_path(source)}",
        make_header(0),
        conclusions=[conclusion],
        commands=[f"serve-eval references check {quote_path(to)}"],
    )


def _tabulate(
    title: str,
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    depth: Depth,
    *,
    numbers: Sequence[int] = (),
) -> Block:
    return Block(
        DataTable(
            title,
            columns=[DataColumn(name, number=i in numbers) for i, name in enumerate(names)],
            rows=[[DataCell(text) for text in row] for row in rows],
        ),
        depth=depth,
    )


SCHEMA = 1
"""Version of the object."""


def write_figures(found: Mapping[str, object]) -> bytes:
    """Return a JSON object with what was found; a path is text."""
    told = msgspec.to_builtins({"schema_version": SCHEMA, **found}, enc_hook=_write_path)
    return msgspec.json.encode(told)


def _write_path(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} is no JSON")
