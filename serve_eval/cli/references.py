"""`serve-eval references`: looks at, checks and imports reference files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from serve_eval.reference import AcceptanceLength
    from serve_eval.schema import Reference

app = typer.Typer(
    help="Show, check and import the registered values that runs are compared with.", no_args_is_help=True
)

_ReferencesDir = Annotated[Path | None, typer.Option(help="Folder of your own that comes before the shipped files.")]
_WIDTH_IN_FILES = 240


@app.command("list")
def list_files(references_dir: _ReferencesDir = None) -> None:
    """List the reference files with the number of their models and entries."""
    from serve_eval import reference

    table = _table("file", "models", "entries", "folder")
    for file in reference.known_files(_directories(references_dir)):
        if file.stem == reference.ACCEPTANCE_LENGTH:
            models = entries = len(reference.load_acceptance_length(file))
        else:
            by_model = reference.load(file)
            models, entries = len(by_model), sum(map(len, by_model.values()))
        _add(table, file.stem, models, entries, file.parent)
    _console().print(table)


@app.command()
def show(
    task: Annotated[str, typer.Argument(help="Name of a reference file, such as gsm8k.")],
    model: Annotated[str | None, typer.Option(help="Only the entries of this model.")] = None,
    references_dir: _ReferencesDir = None,
) -> None:
    """Show the entries of a reference file in the order in which they are tried."""
    from serve_eval import folders, reference
    from serve_eval.errors import PlanError

    files = reference.known_files(_directories(references_dir))
    chosen = [file for file in files if file.stem == task]
    if not chosen:
        known = sorted({file.stem for file in files})
        raise PlanError(f"there is no reference file {task!r}.{folders.nearest(task, known)}")
    if task == reference.ACCEPTANCE_LENGTH:
        table, names = _lengths([reference.load_acceptance_length(file) for file in chosen], model)
    else:
        table, names = _entries([reference.load(file) for file in chosen], model)
    if model is not None and model not in names:
        raise PlanError(f"{task} has no entry for {model!r}.{folders.nearest(model, names)}")
    _console().print(table)


@app.command()
def check(
    path: Annotated[Path | None, typer.Argument(help="A file or a folder; default: the shipped files.")] = None,
) -> None:
    """Check reference files. Every problem is listed; any makes the exit code 2."""
    from serve_eval import reference
    from serve_eval.errors import ReferenceFileError

    path = path or reference.shipped_dir()
    problems = reference.check(path)
    if problems:
        raise ReferenceFileError("\n".join(problems), hint=f"Problems: {len(problems)}. Correct them and check again.")
    _say(f"{path}: no problem found")


@app.command("import")
def import_files(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="The references folder of a TensorRT-LLM checkout.")],
    to: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("references"),
    commit: Annotated[str | None, typer.Option(help="Commit of that checkout, written into the files.")] = None,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="DIR is the copy the shipped files were made of.")
    ] = False,
) -> None:
    """Import TensorRT-LLM's own reference files, and tell everything odd about them."""
    import datetime

    from serve_eval import reference_import as importer

    read_on = importer.TRTLLM_READ_ON if snapshot else datetime.datetime.now(datetime.UTC).date().isoformat()
    commits: Mapping[str, str] = importer.TRTLLM_COMMITS if snapshot else {}
    if commit is not None:
        commits = {file.stem: commit for file in source.glob("*.yaml")}
    report = importer.import_directory(source, to, commits=commits, read_on=read_on)
    for oddity in report.oddities:
        _say(oddity)
    old = sum(count.written for file, count in report.counts.items() if file.startswith("older/"))
    entries = sum(count.written for count in report.counts.values())
    _say(f"{to}: {len(report.written)} files, {entries} entries ({old} of them old), {len(report.oddities)} oddities")


# ------------------------------------------------------------------------------------------------------ printing


def _entries(files: list[dict[str, list[Reference]]], wanted: str | None) -> tuple[Table, Collection[str]]:
    """A table of the entries of one model or of all, and the names of all models."""
    from serve_eval.reference import spec_text

    table = _table("model", "spec", "value", "num_samples", "threshold", "other", "source")
    for entries in files:
        for model in entries if wanted is None else [wanted]:
            for r in entries.get(model, []):
                others = ("alpha", "beta", "sigma", "higher_is_better", "reference_note", "date", "protocol")
                other = " ".join(f"{key}={getattr(r, key)}" for key in others if getattr(r, key) is not None)
                source = f"{r.source or ''}{' (old)' if r.old else ''}"
                _add(table, model, spec_text(r.spec), r.value, r.num_samples, r.threshold, other, source)
    return table, list(dict.fromkeys(model for entries in files for model in entries))


def _lengths(files: list[dict[str, AcceptanceLength]], wanted: str | None) -> tuple[Table, Collection[str]]:
    """A table of acceptance lengths, and the names of all tests."""
    table = _table("test", "ref_al", "min_al")
    for lengths in files:
        for test, length in lengths.items():
            if wanted in (None, test):
                _add(table, test, round(length.ref_al, 4), round(length.min_al, 4))
    return table, list(dict.fromkeys(test for lengths in files for test in lengths))


def _directories(own: Path | None) -> list[Path]:
    from serve_eval import reference

    return [reference.shipped_dir()] if own is None else [own, reference.shipped_dir()]


def _console() -> Console:
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDTH_IN_FILES
    return console


def _say(line: str) -> None:
    from rich.text import Text

    from serve_eval.report.text import clean

    _console().print(Text(clean(line)), soft_wrap=True)


def _table(*columns: str) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    return Table(*columns, box=SIMPLE)


def _add(table: Table, *cells: object) -> None:
    """Adds a row. Names come from files and are printed as they are, never as markup."""
    from rich.text import Text

    from serve_eval.report.text import clean

    table.add_row(*(Text("" if cell is None else clean(str(cell)), overflow="fold") for cell in cells))
