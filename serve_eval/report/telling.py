"""Give a report a text: one line with the outcome, the figures and the folder."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Self

from serve_eval.report.one_line import write_line
from serve_eval.report.run.document import make_run_document
from serve_eval.schema import REHEARSED, Report


class TellingReport(Report):
    """A report whose text is the line of its worst task, which ends with the run folder."""

    __slots__ = ("_folder",)
    _folder: Path

    @classmethod
    def of(cls, report: Report, folder: Path) -> Self:
        """Return the same report with its folder."""
        telling = cls(**{one.name: getattr(report, one.name) for one in fields(report)})
        object.__setattr__(telling, "_folder", folder)
        return telling

    def __str__(self) -> str:
        folder = getattr(self, "_folder", Path())
        if not self.tasks:
            return "no task was asked"
        line = make_run_document(self, folder).make_line()
        place = str(folder) if folder.name else ""
        return write_line(replace(line, place=place, notice=REHEARSED if self.rehearsal else ""))
