"""Your own cases from YAML files (docs/own-questions.md): one task for each module.

A case is `{case: europe:paris, input: {prompt: What is the capital of France?}, expected: {answer:
Paris}}`. The value is the mean over the cases of points earned / points possible, in percent. Each
case has a scorer.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Annotated, Any

import msgspec

from serve_eval.cases import file
from serve_eval.cases.biochatter import AS_BIOCHATTER
from serve_eval.cases.case_scorers import (
    failure_mode,
    list_options,
    list_versions,
    scorer_of,
    spec_of,
)
from serve_eval.cases.prompts import ask_each, name_turn, score_each
from serve_eval.cases.questions import MAX_EXPANDED, CaseQuestion, Questions, questions
from serve_eval.errors import DatasetError
from serve_eval.plugins.setting import Setting
from serve_eval.protocol.conversation import HISTORY_THOUGHTS, change_prompt
from serve_eval.protocol.sampling_fields import CASES, SCORER_OPTIONS, canonical
from serve_eval.schema import (
    HOLDOUT,
    Breakdown,
    DataRoots,
    Dataset,
    Hypothesis,
    Metric,
    Need,
    Program,
    Question,
    Response,
    Sample,
    Score,
    Scored,
    Scorer,
    Spec,
    Task,
    file_stem,
    no_secondary,
)
from serve_eval.schema.media import list_media_needs
from serve_eval.tasks._samples import tabulate

SHOWN = 5
"""Cases that a note about skipped cases names."""
DEEPEST = 6
"""Number of fields of a colon path that get a table."""


def task(
    name: str,
    *,
    path: Annotated[str | list[str], Setting("Files of cases, or folders with such files.")],
    scorer: Annotated[
        str | dict[str, dict[str, Any] | None] | None,
        Setting("Scorer of all cases of the module, with its options. Not set: the file's."),
    ] = None,
    prompt: Annotated[
        str | None, Setting("Text around the input of each case. Not set: the file's.")
    ] = None,
    system_messages: Annotated[
        list[str] | None, Setting("System messages of all cases. Not set: the file's.")
    ] = None,
    group: Annotated[
        str | None,
        Setting("What cases share: a field, an input or a pattern for names. Not set: the file's."),
    ] = None,
    max_expanded: Annotated[
        int, Setting("Most cases that the axes of the module may yield.")
    ] = MAX_EXPANDED,
    as_biochatter: Annotated[
        bool | None,
        Setting(
            "Score a file in BioChatter's form as BioChatter does. Not set: if it has that form."
        ),
    ] = None,
) -> Task:
    """Return the module `name` of the case files and folders of `path` as a task.

    `scorer`, `prompt`, `system_messages` and `group` replace the file's settings for the whole
    module.
    `max_expanded` limits the cases that its axes may yield. If `as_biochatter` is false, cases of
    BioChatter's files are scored like cases of any other file. Raises PlanError for every problem
    of the files.
    """
    files = file.read([path] if isinstance(path, str) else path)
    found = questions(
        files,
        name,
        scorer=spec_of(scorer),
        prompt=prompt,
        system_messages=system_messages,
        max_expanded=max_expanded,
        as_biochatter=as_biochatter,
        group=group,
    )
    full_name = f"cases:{name}"
    named = [spec for q in found.asked for spec in _list_scorers(q)]
    specs = {canonical(spec): spec for spec in named}
    scorers = {text: scorer_of(spec) for text, spec in specs.items()}
    versions = list_versions((spec.name, scorers[text]) for text, spec in specs.items())
    scoring = _CaseScoring(found.asked, scorers)
    talks = [q for q in found.asked if q.conversation is not None]
    samples = [_sample(q) for q in found.asked]

    def load(roots: DataRoots, wanted: int) -> Dataset:
        if not samples:
            raise DatasetError(
                f"{full_name}: no case can be asked:"
                f" {'; '.join(list_skipped_lines(found)) or 'the module is empty'}"
            )
        notes = (*list_skipped_lines(found), *found.notes)
        return Dataset(samples=samples, files=files.files, total=len(samples), notes=notes)

    theirs = (
        {AS_BIOCHATTER: True} if found.asked and all(q.as_biochatter for q in found.asked) else {}
    )
    judged = [scorer.decisive for scorer in scorers.values() if scorer.questions is not None]
    # An option of a judge is in `judges`, and one of BioChatter's scoring in `as_biochatter`.
    plain = [(specs[text], one) for text, one in scorers.items() if one.questions is None]
    chosen_options = {} if theirs else list_options(plain)
    needs = {need for chosen in scorers.values() for need in chosen.requires}
    if any(q.override is not None and "tools" in q.override.extra for q in found.asked):
        needs.add(Need.TOOLS)
    needs |= {need for q in found.asked for need in list_media_needs(q.turns)}
    return Task(
        name=full_name,
        version=1,
        reference_file=file_stem(full_name),
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=max(1, len(samples))),
        sampling=found.sampling,
        chat=True,
        protocol={
            "scorers": versions,
            **({SCORER_OPTIONS: chosen_options} if chosen_options else {}),
            **({"judges": judged} if judged else {}),
            **theirs,
            **({HISTORY_THOUGHTS: "drop"} if talks else {}),
        },
        reference_fields={CASES: _checksum(found.asked, each=len(specs) > 1)},
        load=load,
        score=scoring.score,
        answers=scoring.answers,
        program=scoring.program if any(chosen.program for chosen in scorers.values()) else None,
        questions=scoring.list_questions if judged else None,
        breakdown=_breakdown(found.module.common.get("fields", ()), by_length=bool(talks)),
        secondary=scoring.measure_turns if scoring.by_turn else no_secondary,
        answers_by_turn=scoring.list_answers if talks else None,
        requires=frozenset(needs),
        failure_mode=scoring.name_mode,
        scoring=(
            "inline" if all(chosen.scoring == "inline" for chosen in scorers.values()) else "apart"
        ),
    )


class _CaseScoring:
    """The scoring of the cases of a task, each found by its target."""

    def __init__(self, asked: Sequence[CaseQuestion], scorers: Mapping[str, Scorer]) -> None:
        self._found = {_target(q): (q, scorers[canonical(_list_scorers(q)[0])]) for q in asked}
        self._alike = len(scorers) == 1
        self.by_turn = any(q.scored for q in asked)

    def score(self, sample: Sample, response: Response) -> Score:
        question, chosen = self._found[sample.target]
        scored = (
            score_each(question.scored, response, scorer_of, failure_mode)
            if question.scored
            else chosen.score(question.expected, response)
        )
        hidden = question.holdout and scored.answer is not None
        # The means of parts are taken over all cases of the task.
        parts = scored.parts if self._alike or question.scored else {}
        answer = _digest(str(scored.answer)) if hidden else scored.answer
        return msgspec.structs.replace(scored, answer=answer, parts=parts)

    def answers(self, sample: Sample) -> tuple[str, str]:
        return self.list_answers(sample)[-1]

    def list_answers(self, sample: Sample) -> Sequence[tuple[str, str]]:
        """Return a right and a wrong text for each turn."""
        question, chosen = self._found[sample.target]
        turns = 0 if sample.conversation is None else len(sample.conversation.turns)
        known = [("I see.", "I see.")] * (turns + 1)
        if not question.scored:
            known[-1] = chosen.answers(question.expected)
        for one in question.scored:
            known[one.turn] = scorer_of(one.scorer).answers(one.expected)
        return known

    def program(self, sample: Sample, response: Response) -> Program | None:
        question, chosen = self._found[sample.target]
        return None if chosen.program is None else chosen.program(question.expected, response)

    def name_mode(self, sample: Sample, response: Response, score: Score) -> str:
        question = self._found[sample.target][0]
        if question.scored and score.mode is not None:
            return score.mode
        return failure_mode(question.expected, response, score)

    def measure_turns(self, scored: Scored) -> Mapping[str, float]:
        """Return the value of each turn in points, over the conversations that score it."""
        found: dict[str, list[float]] = defaultdict(list)
        for sample, score in scored:
            for one in self._found[sample.target][0].scored:
                found[name_turn(one.turn)].append(score.parts[name_turn(one.turn)])
        return {name: 100.0 * fmean(values) for name, values in sorted(found.items())}

    def list_questions(self, sample: Sample, response: Response) -> Sequence[Question]:
        question, chosen = self._found[sample.target]
        if question.scored:
            return list(ask_each(question.scored, sample, response, scorer_of))
        if chosen.questions is None or not (response.text.strip() or response.tool_calls):
            return ()
        if sample.conversation is not None:
            sample = change_prompt(sample, response.exchanges or ())
        return chosen.questions(sample, question.expected, response)


def _target(question: CaseQuestion) -> str:
    """Return the text that decides the score of an answer, part of the fingerprint.

    For a hold-out set it is a hash.
    """
    if question.scored:
        text = canonical(
            {
                "expected": question.expected,
                "turns": [(one.turn, _find_decisive(one.scorer)) for one in question.scored],
            }
        )
        return _digest(text) if question.holdout else text
    decisive = scorer_of(question.scorer).decisive
    options = question.scorer.options if decisive is None else decisive
    text = canonical(
        {"expected": question.expected, "scorer": question.scorer.name, "options": options}
    )
    return _digest(text) if question.holdout else text


def _find_decisive(spec: Spec) -> object:
    """Return a scorer with the options that decide its scores."""
    decisive = scorer_of(spec).decisive
    return spec if decisive is None else {"name": spec.name, "options": decisive}


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _checksum(asked: Sequence[CaseQuestion], *, each: bool) -> str:
    """Return the number of cases and a checksum of their ids and expected values.

    `each`: the scorer of each case is part of it, since not all have the same.
    """
    scorer = [q.scorer if each else None for q in asked]
    lines = (canonical([q.id, q.expected, one]) for q, one in zip(asked, scorer, strict=True))
    digest = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
    return f"{len(asked)} sha256:{digest[:24]}"


def _sample(question: CaseQuestion) -> Sample:
    hidden = {HOLDOUT: "yes"} if question.holdout else {}
    return Sample(
        id=question.id,
        prompt=question.turns,
        target=_target(question),
        metadata={
            "case": question.name,
            "compat_md5": question.md5,
            "question": question.question,
            "scorer": question.scorer.name,
            **hidden,
        },
        override=question.override,
        group=question.group,
        conversation=question.conversation,
    )


def _list_scorers(question: CaseQuestion) -> Sequence[Spec]:
    """Return the scorers of a case: that of each scored turn, or that of its answer."""
    return [one.scorer for one in question.scored] or [question.scorer]


def list_skipped_lines(found: Questions) -> tuple[str, ...]:
    """Return a line for each reason, with the cases that are skipped for it."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for one in found.skipped:
        by_reason[one.reason].append(one.name)
    return tuple(
        f"{len(names)} skipped ({', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}):"
        f" {reason}"
        for reason, names in by_reason.items()
    )


LENGTH = "prompt length"
LENGTHS = (1_000, 4_000, 16_000, 64_000)
"""Ends of the classes of prompt lengths, in characters."""


def _name_length(sample: Sample) -> str:
    """Return the class of a sample's length: its texts that do not depend on answers."""
    later = () if sample.conversation is None else sample.conversation.turns
    turns = (*sample.prompt, *(one.message for one in later))
    characters = sum(len(turn.text) for turn in turns if not isinstance(turn, str))
    end = next((end for end in LENGTHS if characters < end), None)
    return f"{LENGTHS[-1]:,} characters or more" if end is None else f"below {end:,} characters"


def _breakdown(fields: Sequence[str], *, by_length: bool = False) -> Breakdown:
    """Return the value in points and the number of scored cases by each field of the names.

    Omits a field that is the same everywhere. `fields` names the first ones. `by_length` adds the
    lengths of prompts.
    """

    def of(scored: Iterable[tuple[Sample, float]]) -> Mapping[str, object]:
        tables: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for sample, value in scored:
            for i, part in enumerate(sample.metadata["case"].split(":")[:DEEPEST]):
                tables[fields[i] if i < len(fields) else f"field {i + 1}"][part].append(value)
            if by_length:
                tables[LENGTH][_name_length(sample)].append(value)
        return tabulate({name: table for name, table in tables.items() if len(table) > 1})

    return of
