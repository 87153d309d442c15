"""Give a comparison a text: the line of its verdict."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Self

from serve_eval.report.one_line import write_line
from serve_eval.schema import Comparison
from serve_eval.workflows.compare.document import make_document


class TellingComparison(Comparison):
    """A comparison whose text is the line of its verdict: the outcome and the figures."""

    __slots__ = ()

    @classmethod
    def of(cls, comparison: Comparison) -> Self:
        """Return the same comparison."""
        return cls(**{one.name: getattr(comparison, one.name) for one in fields(comparison)})

    def __str__(self) -> str:
        if not self.tasks:
            return "no task was compared"
        return write_line(make_document(self, Path(self.b.folder).parent).make_line())
