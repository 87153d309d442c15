"""Read the answers of one pass, reduced to what is compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from serve_eval.evidence.agreement.answer_pairs import read_failures, read_responses, read_task
from serve_eval.schema import Failure, Report, Response, Sample, ToolForm, Usage
from serve_eval.scorers._call_faults import CallFault
from serve_eval.scorers._served_call import find_faults, read_expectation
from serve_eval.storage.reports.report_file import read_report
from serve_eval.tasks._tool_calls.requests import KIND

TASK = "tool_calls"


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """One answer: its request's kind, its errors, its parts, and its token counts.

    `parts` are reasoning, text, and each call's name and arguments, as they came; `meant` has the
    arguments as JSON in one form, since servers write and escape it in several. `chose`: the model
    may choose whether to call; `wanted`: the label says that it must.
    """

    kind: str
    faults: tuple[CallFault, ...]
    parts: tuple[str, ...]
    meant: tuple[str, ...]
    called: bool
    reasoned: bool
    chose: bool
    wanted: bool
    usage: Usage

    @property
    def said(self) -> str:
        """The answer for a reader, without its reasoning."""
        return " ".join(filter(None, self.parts[1:]))


Answers = Mapping[str, CheckedAnswer]
"""The answers of a pass that have a score, by sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPass:
    """A finished pass with its answers."""

    form: ToolForm
    load: int
    report: Report
    answers: Answers
    failures: Mapping[str, Failure] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.form} at {self.load}"

    @property
    def failed(self) -> int:
        """Number of requests without an answer."""
        return self.report.tasks[0].result.planned - len(self.answers)

    @property
    def cut(self) -> int:
        """Number of answers that were cut."""
        return sum(CallFault.CUT in answer.faults for answer in self.answers.values())


def read_pass(folder: Path, form: ToolForm, load: int, samples: Iterable[Sample]) -> ToolPass:
    """Return a finished pass. Raises RunFolderError for files that are missing or damaged."""
    report = read_report(folder)
    told = read_task(folder, report, TASK)
    known = {sample.id: sample for sample in samples}
    answers: dict[str, CheckedAnswer] = {}
    for prompt, response in read_responses(told):
        if prompt in told.lines[0] and prompt in known:
            answers.setdefault(prompt, check_answer(known[prompt], response))
    return ToolPass(
        form=form, load=load, report=report, answers=answers, failures=read_failures(told)
    )


def check_answer(sample: Sample, response: Response) -> CheckedAnswer:
    """Return an answer with its errors."""
    expected = read_expectation(sample)
    shown = (response.reasoning or "", response.text)
    calls = [part for call in response.tool_calls for part in (call.name, call.arguments)]
    meant = [
        part
        for call in response.tool_calls
        for part in (call.name, write_in_one_form(call.arguments))
    ]
    return CheckedAnswer(
        kind=sample.metadata[KIND],
        faults=find_faults(sample, response),
        parts=(*shown, *calls),
        meant=(*shown, *meant),
        called=bool(response.tool_calls),
        reasoned=bool((response.reasoning or "").strip()),
        chose=expected.auto,
        wanted=expected.wanted == "call",
        usage=response.usage,
    )


def write_in_one_form(arguments: str) -> str:
    """Return JSON with sorted keys, without space and escapes; any other text as it is."""
    try:
        return json.dumps(
            json.loads(arguments), sort_keys=True, ensure_ascii=False, separators=(",", ":")
        )
    except (ValueError, RecursionError):
        return arguments
