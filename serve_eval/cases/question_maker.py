"""Make questions from the cases of a module: expand them, and add turns, scorers and keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from serve_eval.cases import biochatter, keys, prompts
from serve_eval.cases.case_scorers import is_foreign, scorer_of, spec_of, usual_scorer
from serve_eval.cases.expansion import Expanded, ExpansionError, count, expand
from serve_eval.cases.file import RawCase
from serve_eval.cases.groups import CaseGroups
from serve_eval.cases.question import CaseQuestion, Skipped
from serve_eval.errors import PlanError
from serve_eval.pace import Pace
from serve_eval.schema import Override, SamplingParams, Spec

MOST_TEXT = 1 << 29
"""Largest number of characters of all prompts of a task."""
UNTOLD = 10**9
"""Number of cases from which messages do not show the number: it is a mistake, and Python refuses
to print a number of thousands of digits."""


class QuestionMaker:
    """Makes questions from the cases of a module, and collects their problems.

    `twice` are the cases with the same question as another one.
    """

    def __init__(
        self,
        module: str,
        common: Mapping[str, Any],
        sampling: SamplingParams,
        resources: Mapping[str, Any],
        scorer: Spec | None,
        as_biochatter: bool,
        groups: CaseGroups,
    ) -> None:
        self._module, self._common, self._resources, self._scorer = (
            module,
            common,
            resources,
            scorer,
        )
        self._as_biochatter, self._groups = as_biochatter, groups
        self.sampling = sampling
        self.problems: list[str] = []
        self.twice: list[Skipped] = []

    def questions(self, cases: Sequence[RawCase], most: int) -> tuple[CaseQuestion, ...]:
        """Return the questions of the cases. Raises PlanError with every problem."""
        total = sum(self._count(case) for case in cases)
        if total > most:
            largest = max(cases, key=self._count)
            raised = (
                f", or raise the limit with --set cases:{self._module}.max_expanded={total}"
                if total < UNTOLD
                else ""
            )
            self.problems.append(
                f"{largest.where()}: {self._module}: the cases expand to {_number(total)}, which"
                f" exceeds max_expanded ({most}; {largest.name} alone expands to"
                f" {_number(self._count(largest))}): leave variants out{raised}"
            )
            raise PlanError(list(dict.fromkeys(self.problems)))
        made: dict[str, CaseQuestion] = {}
        pace = Pace(f"cases:{self._module}", total, "cases")
        try:
            self._make(cases, made, pace)
        finally:
            pace.end()
        if self.problems:
            raise PlanError(list(dict.fromkeys(self.problems)))
        return tuple(made.values())

    def _make(self, cases: Sequence[RawCase], made: dict[str, CaseQuestion], pace: Pace) -> None:
        done = length = 0
        for case in cases:
            for question in self._of(case):
                done, length = done + 1, length + sum(len(turn.text) for turn in question.turns)
                pace.at(done)
                if length > MOST_TEXT:
                    raise PlanError(
                        f"{question.where}: {self._module}: its prompts have more than {MOST_TEXT}"
                        " characters in total",
                        hint=("Leave cases out, or split them into several tasks and files."),
                    )
                if (
                    case.biochatter
                    and question.id in made
                    and made[question.id].md5 != question.md5
                ):
                    # BioChatter treats cases with different expectations of one question as two.
                    question = replace(question, id=f"{question.id}-{question.md5[:6]}")
                known = made.setdefault(question.id, question)
                if known is question:
                    continue
                if case.biochatter:
                    reason = f"it is the same as the case at {known.where}, which is asked once"
                    one = Skipped(
                        name=question.name, where=case.where(), reason=reason, md5=question.md5
                    )
                    self.twice.append(one)
                elif (known.expected, known.scorer) == (question.expected, question.scorer):
                    self._add(case, (), question.name, f"already defined at {known.where}")
                else:
                    self._add(
                        case,
                        (),
                        question.name,
                        f"the same question has another expectation at {known.where}",
                    )

    def _count(self, case: RawCase) -> int:
        try:
            return count(case.content)
        except ExpansionError:
            return 0

    def _add(self, case: RawCase, path: tuple[Any, ...], name: str, message: str) -> None:
        shown = f"{'.'.join(path)}: " if path and not message.startswith(path[0]) else ""
        self.problems.append(f"{case.where(*path)}: {self._module}: case {name}: {shown}{message}")

    def _of(self, case: RawCase) -> Iterator[CaseQuestion]:
        content = dict(case.content)
        values = dict(content["input"])
        for key in ("prompt", "system_messages"):
            if (
                key not in values
                and key in self._common
                and not (key == "prompt" and values.get("messages"))
            ):
                values[key] = self._common[key]
        told: set[tuple[tuple[Any, ...], str]] = set()
        expanding = expand(content)
        added = {key: value for key, value in values.items() if key not in content["input"]}
        while True:
            try:
                one = next(expanding, None)
                if one is None:
                    return
                yield self._question(case, one, added)
            except ExpansionError as error:
                self._add(case, error.key, case.name, str(error))
                return
            except _Wrong as wrong:
                # Report a problem only once, and not for each variant.
                if (wrong.path, wrong.message) not in told:
                    told.add((wrong.path, wrong.message))
                    self._add(case, wrong.path, wrong.name, wrong.message)

    def _question(self, case: RawCase, one: Expanded, added: Mapping[str, Any]) -> CaseQuestion:
        values = {
            **(biochatter.as_sent(one.content) if case.biochatter else one.content["input"]),
            **added,
        }
        try:
            turns = prompts.turns(values, self._resources, case.folder)
        except PlanError as error:
            raise _Wrong(one.name, ("input",), str(error)) from error
        try:
            expected, spec, theirs = self._choose_scorer(case, one.content)
            if case.unquoted and is_foreign(spec):
                path = next(iter(case.unquoted))
                raise _Wrong(case.name, path, "; ".join(case.unquoted.values()))
            problems = scorer_of(spec).problems(expected)
        except PlanError as error:
            raise _Wrong(one.name, ("scorer",), "; ".join(error.problems)) from error
        if problems:
            raise _Wrong(one.name, ("expected",), f"{'; '.join(problems)} (scorer {spec.name})")
        override = _override(one.content.get("sampling"), values)
        question = keys.question_sha256(turns, self.sampling, override)
        return CaseQuestion(
            id=keys.sample_id(one.name, question),
            name=one.name,
            turns=turns,
            override=override,
            expected=expected,
            scorer=spec,
            question=question,
            md5=keys.compat_md5(one.content),
            holdout=case.holdout,
            where=case.where(),
            as_biochatter=theirs,
            group=self._groups.find(one, values),
        )

    def _choose_scorer(self, case: RawCase, content: Mapping[str, Any]) -> tuple[Any, Spec, bool]:
        """Return the expectation, the scorer, and True if the scoring is BioChatter's."""
        expected, chosen = content.get("expected"), spec_of(content.get("scorer")) or self._scorer
        if not case.biochatter:
            return expected, chosen or usual_scorer(expected), False
        compared, usual = biochatter.choose_scoring(self._module, expected)
        if usual is not None and self._as_biochatter and chosen in (None, usual):
            return compared, usual, True
        if chosen is not None and chosen.options.get(biochatter.AS_BIOCHATTER):
            return expected, chosen, False
        readable = biochatter.readable(expected)
        return readable, chosen or usual_scorer(readable), False


class _Wrong(Exception):
    """A problem of one expanded case."""

    def __init__(self, name: str, path: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.name, self.path, self.message = name, path, message


def _number(cases: int) -> str:
    return str(cases) if cases < UNTOLD else f"{UNTOLD} or more"


def _override(sampling: Any, values: Mapping[str, Any]) -> Override | None:
    own = dict(sampling or {})
    extra = {key: values[key] for key in ("tools", "tool_choice") if values.get(key)}
    if not own and not extra:
        return None
    stop = own.get("stop")
    return Override(
        max_tokens=own.get("max_tokens"), stop=None if stop is None else tuple(stop), extra=extra
    )
