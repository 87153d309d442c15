"""Make the document of what was written in another format. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os.path import commonpath
from pathlib import Path

from serve_eval.report.document import Block, Conclusion, Depth, Document, Statement, make_header
from serve_eval.report.page.content import DataCell, DataColumn, DataTable

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
        name=to_format,
        outcome=WRITTEN,
        figures=f"{number:,} row{'s' * (number != 1)}{where}",
        statements=[
            Statement(label="from", text=", ".join(map(str, runs))),
            *(Statement(label="note", text=note, depth=Depth.MORE) for note in notes),
        ],
    )
    return Document(
        story="export",
        command=f"serve-eval runs export --format {to_format}",
        header=make_header(0),
        conclusions=[conclusion],
        blocks=[_tabulate(files, rows, place)] if len(files) > 1 else [],
        warnings=list(left_out),
    )


def _tabulate(files: Sequence[Path], rows: Mapping[Path, int], place: Path) -> Block:
    """Return the table of several files below a folder. One without samples has no rows."""
    section = DataTable(
        title="Files",
        columns=[DataColumn(name="rows", number=True), DataColumn(name="file")],
        rows=[
            [
                DataCell(text=f"{rows[file]:,}" if file in rows else "-"),
                DataCell(text=str(file.relative_to(place))),
            ]
            for file in files
        ],
    )
    return Block(section=section, depth=Depth.FIRST)
