"""The types of questions and of skipped cases."""

from __future__ import annotations

from dataclasses import dataclass

from serve_eval.cases.biochatter import Lacking
from serve_eval.cases.file import CaseModule
from serve_eval.schema import Message, Override, SamplingParams, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseQuestion:
    """One expanded case.

    `question` is the hash of the whole question. `group` names what it shares with other cases
    (empty: nothing that is known). `md5` is BioChatter's key of the case.
    `as_biochatter` means that it is scored as in BioChatter's benchmark.
    """

    id: str
    name: str
    turns: tuple[Message, ...]
    override: Override | None
    expected: object
    scorer: Spec
    question: str
    md5: str
    holdout: bool
    where: str
    as_biochatter: bool
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A case that is not asked, with the reason.

    `md5` is BioChatter's key of the case. `lacking` is what options could supply.
    """

    name: str
    where: str
    reason: str
    md5: str = ""
    lacking: Lacking | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """The questions of a task, in the order of the files. `notes` are about their scoring."""

    module: CaseModule
    sampling: SamplingParams
    asked: tuple[CaseQuestion, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...] = ()
