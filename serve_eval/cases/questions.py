"""Turn the cases of a module into questions and skipped cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from serve_eval.cases import biochatter, keys
from serve_eval.cases.biochatter import Lacking
from serve_eval.cases.case_scorers import check_scorer, scorer_of, spec_of
from serve_eval.cases.expansion import ExpansionError, count, expand
from serve_eval.cases.file import CaseFiles, RawCase
from serve_eval.cases.groups import CaseGroups
from serve_eval.cases.question import CaseQuestion, Questions, Skipped
from serve_eval.cases.question_maker import QuestionMaker
from serve_eval.errors import PlanError
from serve_eval.plugins import registry
from serve_eval.schema import Response, SamplingParams, Spec

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
            found = [(one.name, keys.compat_md5(one.content)) for one in expand(case.content)]
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
