"""The cases of a module as they are asked: expanded, with their turns, their scorers and their keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from serve_eval.cases import biochatter, keys, prompts
from serve_eval.cases.biochatter import Lacking
from serve_eval.cases.expansion import Expanded, ExpansionError, count, expand
from serve_eval.cases.file import CaseFiles, Module, RawCase
from serve_eval.errors import PlanError
from serve_eval.pace import Pace
from serve_eval.plugins import registry
from serve_eval.plugins.registry import SCORERS
from serve_eval.plugins.scope import Scope, current
from serve_eval.protocol.fingerprint import canonical
from serve_eval.schema import Message, Override, Response, SamplingParams, Scorer, Spec

MAX_EXPANDED = 10_000
MOST_TEXT = 1 << 29
"""Characters of all prompts of a task."""
UNTOLD = 10**9
"""So many cases are a mistake, and Python refuses to write a number of thousands of digits."""
MAX_TOKENS = 512
_BY_FIELD = {"parts_of_query": "regex", "words_in_response": "words"}
"""Scorers of cases that name none, by what they expect; else the answer is compared exactly."""
_EXACT = "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One expanded case. `question` is the hash of all that is asked, `md5` BioChatter's key of the case;
    `as_biochatter`: it is scored as in BioChatter's benchmark."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A case that is not asked, and why. `md5` is BioChatter's key of it, `lacking` what options could give."""

    name: str
    where: str
    reason: str
    md5: str = ""
    lacking: Lacking | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """The questions of a task, in the order of the files; `notes` are remarks on their scoring."""

    module: Module
    sampling: SamplingParams
    asked: tuple[Question, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...] = ()


def questions(
    files: CaseFiles,
    name: str,
    *,
    scorer: Spec | None = None,
    prompt: str | None = None,
    system_messages: Sequence[str] | None = None,
    max_expanded: int = MAX_EXPANDED,
    as_biochatter: bool | None = None,
) -> Questions:
    """Return the questions of the module `name`. The options replace what the file says of the whole module;
    `as_biochatter` scores cases in BioChatter's form as its benchmark does (None: those of its modules).

    Raises PlanError with every problem.
    """
    if name not in files.modules:
        raise PlanError(f"there are no cases called {name!r}.{registry.nearest(name, files.modules)}")
    module = files.modules[name]
    if as_biochatter is not None and (scorer or not any(case.biochatter for case in module.cases)):
        why = "the option scorer decides" if scorer else "the files are not BioChatter's (*_data.yaml)"
        raise PlanError(
            f"as_biochatter: {why}: leave it out, or say it of a scorer: {{exact: {{as_biochatter: true}}}}"
        )
    common = dict(module.common)
    common |= {} if prompt is None else {"prompt": prompt}
    common |= {} if system_messages is None else {"system_messages": list(system_messages)}
    told = prompt is not None or system_messages is not None
    chosen = scorer or spec_of(common.get("scorer"))
    if chosen is not None:
        place = "" if scorer else f"{module.where('scorer')}: {name}."
        _check_scorer(chosen, place)
    kept, skipped = [], []
    for case in module.cases:
        lacking = biochatter.missing(name, case.content, told=told, judged=bool(chosen)) if case.biochatter else None
        if lacking is None:
            kept.append(case)
        else:
            skipped += _skipped(case, lacking, max_expanded)
    theirs = name in biochatter.TESTED if as_biochatter is None else as_biochatter
    maker = _Maker(name, common, _sampling(common), files.resources, chosen, theirs)
    asked = maker.questions(kept, max_expanded)
    strict = [_reached(question) for question in asked if question.scorer.options.get(biochatter.AS_BIOCHATTER)]
    notes = biochatter.strictness(name, strict, chosen=not any(question.as_biochatter for question in asked))
    return Questions(module=module, sampling=maker.sampling, asked=asked, skipped=(*skipped, *maker.twice), notes=notes)


def _number(cases: int) -> str:
    return str(cases) if cases < UNTOLD else f"{UNTOLD} or more"


def _skipped(case: RawCase, lacking: Lacking, most: int) -> list[Skipped]:
    """One for each of the cases that it stands for, or one alone where it cannot be expanded to at most so many."""
    try:
        if isinstance(case.content.get("input"), Mapping) and count(case.content) <= most:
            found = [(one.name, keys.compat_md5(one.content)) for one in expand(case.content)]
        else:
            found = [(case.name, "")]
    except ExpansionError:
        found = [(case.name, "")]
    return [
        Skipped(name=name, where=case.where(), reason=lacking.reason, md5=md5, lacking=lacking) for name, md5 in found
    ]


def _reached(question: Question) -> tuple[str, object, bool]:
    """A case with whether its own answer is right."""
    scorer = scorer_of(question.scorer)
    right, _ = scorer.answers(question.expected)
    score = scorer.score(question.expected, Response(text=right, finish_reason="stop"))
    return question.name, question.expected, score.value == 1.0


def _check_scorer(spec: Spec, place: str) -> None:
    """Raises PlanError for a scorer of the whole module that is none, once and not at each case."""
    try:
        scorer_of(spec)
    except PlanError as error:
        raise PlanError([f"{place}scorer: {problem}" for problem in error.problems], hint=error.hint) from error


def spec_of(raw: Any) -> Spec | None:
    """A scorer as files and options name it: `words`, or `{words: {ignore_case: true}}`. Raises PlanError."""
    if raw is None or isinstance(raw, str):
        return None if raw is None else Spec(name=raw)
    if isinstance(raw, Mapping) and len(raw) == 1:
        [(name, options)] = raw.items()
        return Spec(name=str(name), options=dict(options or {}))
    raise PlanError("scorer: expected a name, or a name with its options: {words: {ignore_case: true}}")


def scorer_of(spec: Spec) -> Scorer:
    """The scorer of a name and its options. Raises PlanError for what is unknown."""
    return _scorer(current(), spec.name, canonical(spec.options))


@lru_cache(maxsize=256)
def _scorer(scope: Scope | None, name: str, options: str) -> Scorer:
    """Kept, since thousands of cases share a scorer, for the scope in which its name was found."""
    import msgspec

    make = registry.load(SCORERS, name)
    checked = registry.check_options(make, msgspec.json.decode(options), f"scorer.{name}")
    made: Scorer = make(**checked)
    return made


def _sampling(common: Mapping[str, Any]) -> SamplingParams:
    given = dict(common.get("sampling") or {})
    if isinstance(given.get("stop"), list):
        given["stop"] = tuple(given["stop"])
    return replace(SamplingParams(max_tokens=MAX_TOKENS), **given)


class _Maker:
    """Makes questions of the cases of a module, and collects what is wrong with them."""

    def __init__(
        self,
        module: str,
        common: Mapping[str, Any],
        sampling: SamplingParams,
        resources: Mapping[str, Any],
        scorer: Spec | None,
        as_biochatter: bool,
    ) -> None:
        self._module, self._common, self._resources, self._scorer = module, common, resources, scorer
        self._as_biochatter = as_biochatter
        self.sampling = sampling
        self.problems: list[str] = []
        self.twice: list[Skipped] = []

    def questions(self, cases: Sequence[RawCase], most: int) -> tuple[Question, ...]:
        """Raises PlanError with every problem."""
        total = sum(self._count(case) for case in cases)
        if total > most:
            largest = max(cases, key=self._count)
            raised = f", or raise it: --set cases:{self._module}.max_expanded={total}" if total < UNTOLD else ""
            self.problems.append(
                f"{largest.where()}: {self._module}: the cases expand to {_number(total)}, more than the {most} of "
                f"max_expanded ({largest.name} alone to {_number(self._count(largest))}): leave variants out{raised}"
            )
            raise PlanError(list(dict.fromkeys(self.problems)))
        made: dict[str, Question] = {}
        pace = Pace(f"cases:{self._module}", total, "cases")
        try:
            self._make(cases, made, pace)
        finally:
            pace.end()
        if self.problems:
            raise PlanError(list(dict.fromkeys(self.problems)))
        return tuple(made.values())

    def _make(self, cases: Sequence[RawCase], made: dict[str, Question], pace: Pace) -> None:
        done = length = 0
        for case in cases:
            for question in self._of(case):
                done, length = done + 1, length + sum(len(turn.text) for turn in question.turns)
                pace.at(done)
                if length > MOST_TEXT:
                    raise PlanError(
                        f"{question.where}: {self._module}: its prompts have more than {MOST_TEXT} characters together",
                        hint="Leave cases out, or make several tasks of them in files of their own.",
                    )
                if case.biochatter and question.id in made and made[question.id].md5 != question.md5:
                    # Two cases to it, which expect something else of one question: both are asked.
                    question = replace(question, id=f"{question.id}-{question.md5[:6]}")
                known = made.setdefault(question.id, question)
                if known is question:
                    continue
                if case.biochatter:
                    reason = f"it is the same as at {known.where}, and asked once"
                    one = Skipped(name=question.name, where=case.where(), reason=reason, md5=question.md5)
                    self.twice.append(one)
                elif (known.expected, known.scorer) == (question.expected, question.scorer):
                    self._add(case, (), question.name, f"it is there already, at {known.where}")
                else:
                    self._add(case, (), question.name, f"the same question expects something else at {known.where}")

    def _count(self, case: RawCase) -> int:
        try:
            return count(case.content)
        except ExpansionError:
            return 0

    def _add(self, case: RawCase, path: tuple[str, ...], name: str, message: str) -> None:
        shown = f"{'.'.join(path)}: " if path and not message.startswith(path[0]) else ""
        self.problems.append(f"{case.where(*path)}: {self._module}: case {name}: {shown}{message}")

    def _of(self, case: RawCase) -> Iterator[Question]:
        content = dict(case.content)
        values = dict(content["input"])
        for key in ("prompt", "system_messages"):
            if key not in values and key in self._common and not (key == "prompt" and values.get("messages")):
                values[key] = self._common[key]
        told: set[tuple[tuple[str, ...], str]] = set()
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
                if (wrong.path, wrong.message) not in told:  # not once for each of its variants
                    told.add((wrong.path, wrong.message))
                    self._add(case, wrong.path, wrong.name, wrong.message)

    def _question(self, case: RawCase, one: Expanded, added: Mapping[str, Any]) -> Question:
        values = {**(biochatter.as_sent(one.content) if case.biochatter else one.content["input"]), **added}
        try:
            turns = prompts.turns(values, self._resources, case.folder)
        except PlanError as error:
            raise _Wrong(one.name, ("input",), str(error)) from error
        try:
            expected, spec, theirs = self._scored(case, one.content)
            problems = scorer_of(spec).problems(expected)
        except PlanError as error:
            raise _Wrong(one.name, ("scorer",), "; ".join(error.problems)) from error
        if problems:
            raise _Wrong(one.name, ("expected",), f"{'; '.join(problems)} (scorer {spec.name})")
        override = _override(one.content.get("sampling"), values)
        question = keys.question_sha256(turns, self.sampling, override)
        return Question(
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
        )

    def _scored(self, case: RawCase, content: Mapping[str, Any]) -> tuple[Any, Spec, bool]:
        """Return the expectation, the scorer, and True where BioChatter scores the case so."""
        expected, chosen = content.get("expected"), spec_of(content.get("scorer")) or self._scorer
        if not case.biochatter:
            return expected, chosen or _usual(expected), False
        compared, usual = biochatter.scoring(self._module, expected)
        if usual is not None and self._as_biochatter and chosen in (None, usual):
            return compared, usual, True
        if chosen is not None and chosen.options.get(biochatter.AS_BIOCHATTER):
            return expected, chosen, False
        readable = biochatter.readable(expected)
        return readable, chosen or _usual(readable), False


class _Wrong(Exception):
    """What is wrong with one expanded case."""

    def __init__(self, name: str, path: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.name, self.path, self.message = name, path, message


def _usual(expected: object) -> Spec:
    if isinstance(expected, Mapping) and "answer" not in expected:
        name = next((scorer for key, scorer in _BY_FIELD.items() if key in expected), _EXACT)
        return Spec(name=name)
    return Spec(name=_EXACT)


def _override(sampling: Any, values: Mapping[str, Any]) -> Override | None:
    own = dict(sampling or {})
    extra = {key: values[key] for key in ("tools", "tool_choice") if values.get(key)}
    if not own and not extra:
        return None
    stop = own.get("stop")
    return Override(max_tokens=own.get("max_tokens"), stop=None if stop is None else tuple(stop), extra=extra)
