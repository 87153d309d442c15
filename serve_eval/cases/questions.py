"""Turn the cases of a module into questions and skipped cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from serve_eval.cases import biochatter, expansion, prompts
from serve_eval.cases.biochatter import Lacking
from serve_eval.cases.case_scorers import check_scorer, is_foreign, scorer_of, spec_of, usual_scorer
from serve_eval.cases.expansion import CaseGroups, Expanded, ExpansionError, count, expand
from serve_eval.cases.file import CaseFiles, CaseModule, RawCase
from serve_eval.cases.prompts import ExpectedTurn, choose_expected, make_conversation, read_turns
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.pace import Pace
from serve_eval.plugins import registry
from serve_eval.schema import Conversation, Message, Override, Response, SamplingParams, Spec


@freeze
class CaseQuestion:
    """One expanded case.

    `question` is the hash of the whole question. `group` names what it shares with other cases
    (empty: nothing that is known). `md5` is BioChatter's key of the case.
    `as_biochatter` means that it is scored as in BioChatter's benchmark. `scored` are the turns of
    a conversation that are scored each (none: the last answer is).
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
    conversation: Conversation | None = None
    scored: tuple[ExpectedTurn, ...] = ()


@freeze
class Skipped:
    """A case that is not asked, with the reason.

    `md5` is BioChatter's key of the case. `lacking` is what options could supply.
    """

    name: str
    where: str
    reason: str
    md5: str = ""
    lacking: Lacking | None = None


@freeze
class Questions:
    """The questions of a task, in the order of the files. `notes` are about their scoring."""

    module: CaseModule
    sampling: SamplingParams
    asked: tuple[CaseQuestion, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...] = ()


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
                and not (key == "prompt" and (values.get("messages") or values.get("turns")))
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
        names = {**self._resources, **values}
        try:
            turns = prompts.turns(values, self._resources, case.folder)
            said = read_turns(values)
            talk = (
                make_conversation(values, said, lambda text: prompts.fill(text, names))
                if said
                else None
            )
        except PlanError as error:
            raise _Wrong(one.name, ("input",), str(error)) from error
        scored: tuple[ExpectedTurn, ...] = ()
        try:
            content = one.content
            if said:
                expected, scored = self._choose_turns(content, said)
                content = {**content, "expected": expected}
            expected, spec, theirs = self._choose_scorer(case, content)
            if case.unquoted and is_foreign(spec):
                path = next(iter(case.unquoted))
                raise _Wrong(case.name, path, "; ".join(case.unquoted.values()))
            problems = (
                [problem for turn in scored for problem in _list_problems(turn)]
                if scored
                else scorer_of(spec).problems(expected)
            )
        except PlanError as error:
            raise _Wrong(one.name, ("scorer",), "; ".join(error.problems)) from error
        if problems:
            raise _Wrong(one.name, ("expected",), f"{'; '.join(problems)} (scorer {spec.name})")
        override = _override(one.content.get("sampling"), values)
        question = expansion.question_sha256(turns, self.sampling, override, talk)
        return CaseQuestion(
            id=expansion.sample_id(one.name, question),
            name=one.name,
            turns=turns,
            override=override,
            expected=expected,
            scorer=spec,
            question=question,
            md5=expansion.compat_md5(one.content),
            holdout=case.holdout,
            where=case.where(),
            as_biochatter=theirs,
            group=self._groups.find(one, values),
            conversation=talk,
            scored=scored,
        )

    def _choose_turns(
        self, content: Mapping[str, Any], said: Sequence[Mapping[str, Any]]
    ) -> tuple[object, tuple[ExpectedTurn, ...]]:
        """Return what a conversation expects, and the turns that are scored."""
        chosen = spec_of(content.get("scorer")) or self._scorer

        def choose(expected: object, own: Any) -> Spec:
            return spec_of(own) or chosen or usual_scorer(expected)

        score = content.get("score") or self._common.get("score")
        return choose_expected(said, content.get("expected"), score, choose)

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


def _list_problems(one: ExpectedTurn) -> Iterator[str]:
    """Yield what is wrong with the expectation of a turn."""
    scorer = scorer_of(one.scorer)
    if scorer.program is not None:
        yield f"turn {one.turn + 1}: {one.scorer.name} scores the last turn only: score: last"
    for problem in scorer.problems(one.expected):
        yield f"turn {one.turn + 1}: {problem}"


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


MAX_EXPANDED = 10_000
MAX_TOKENS = 512


def questions(
    files: CaseFiles,
    name: str,
    *,
    scorer: Spec | None = None,
    prompt: str | None = None,
    system_messages: Sequence[str] | None = None,
    max_expanded: int = MAX_EXPANDED,
    as_biochatter: bool | None = None,
    group: str | None = None,
) -> Questions:
    """Return the questions of the module `name`.

    The options replace the settings of the whole module in the file. `as_biochatter` selects the
    scoring of BioChatter's benchmark for cases in its form (None: only for its own modules). Raises
    PlanError with every problem.
    """
    if name not in files.modules:
        raise PlanError(f"no cases are named {name!r}.{registry.nearest(name, files.modules)}")
    module = files.modules[name]
    if as_biochatter is not None and (scorer or not any(case.biochatter for case in module.cases)):
        why = (
            "the option scorer decides"
            if scorer
            else "the files are not BioChatter's (*_data.yaml)"
        )
        raise PlanError(
            f"as_biochatter: {why}: leave it out, or set it for a scorer: {{exact:"
            " {as_biochatter: true}}"
        )
    common = dict(module.common)
    common |= {} if prompt is None else {"prompt": prompt}
    common |= {} if system_messages is None else {"system_messages": list(system_messages)}
    common |= {} if group is None else {"group": group}
    told = prompt is not None or system_messages is not None
    chosen = scorer or spec_of(common.get("scorer"))
    if chosen is not None:
        place = "" if scorer else f"{module.where('scorer')}: {name}."
        check_scorer(chosen, place)
    kept, skipped = [], []
    for case in module.cases:
        lacking = (
            biochatter.explain_missing(name, case.content, told=told, judged=bool(chosen))
            if case.biochatter
            else None
        )
        if lacking is None:
            kept.append(case)
        else:
            skipped += _list_skipped(case, lacking, max_expanded)
    theirs = name in biochatter.TESTED if as_biochatter is None else as_biochatter
    place = f"{module.where('group')}: {name}.group" if group is None else f"cases:{name}.group"
    groups = CaseGroups(common.get("group"), common.get("fields") or (), place)
    maker = QuestionMaker(name, common, _sampling(common), files.resources, chosen, theirs, groups)
    asked = maker.questions(kept, max_expanded)
    groups.check()
    strict = [
        _check_reached(question)
        for question in asked
        if question.scorer.options.get(biochatter.AS_BIOCHATTER)
    ]
    notes = biochatter.strictness(
        name, strict, chosen=not any(question.as_biochatter for question in asked)
    )
    return Questions(
        module=module,
        sampling=maker.sampling,
        asked=asked,
        skipped=(*skipped, *maker.twice),
        notes=notes,
    )


def _list_skipped(case: RawCase, lacking: Lacking, most: int) -> list[Skipped]:
    """Return one entry per expanded case, or only one if it does not expand to at most `most`."""
    try:
        if isinstance(case.content.get("input"), Mapping) and count(case.content) <= most:
            found = [(one.name, expansion.compat_md5(one.content)) for one in expand(case.content)]
        else:
            found = [(case.name, "")]
    except ExpansionError:
        found = [(case.name, "")]
    return [
        Skipped(name=name, where=case.where(), reason=lacking.reason, md5=md5, lacking=lacking)
        for name, md5 in found
    ]


def _check_reached(question: CaseQuestion) -> tuple[str, object, bool]:
    """Return the name and the expectation of a case, and True if its own answer is right."""
    scorer = scorer_of(question.scorer)
    right, _ = scorer.answers(question.expected)
    score = scorer.score(question.expected, Response(text=right, finish_reason="stop"))
    return question.name, question.expected, score.value == 1.0


def _sampling(common: Mapping[str, Any]) -> SamplingParams:
    given = dict(common.get("sampling") or {})
    if isinstance(given.get("stop"), list):
        given["stop"] = tuple(given["stop"])
    return replace(SamplingParams(max_tokens=MAX_TOKENS), **given)
