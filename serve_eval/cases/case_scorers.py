"""Find the scorer of a case, and name how an answer to it failed.

The categories for texts are the meaningful ones of BioChatter's benchmark: case, format, partial
match, words missing. Its category of synonyms is left out, because it accepts any two nouns.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from serve_eval.errors import PlanError
from serve_eval.plugins import extensions, registry
from serve_eval.plugins.registry import SCORERS
from serve_eval.plugins.scope import Scope, current
from serve_eval.protocol.sampling_fields import canonical
from serve_eval.schema import ExitReason, Outcome, Response, Score, Scorer, Spec

_BY_FIELD = {"parts_of_query": "regex", "words_in_response": "words"}
"""Scorers by the key of an expectation. Without such a key the answer is compared exactly."""
_EXACT = "exact"


def spec_of(raw: Any) -> Spec | None:
    """Return the Spec of a scorer: `words`, or `{words: {ignore_case: true}}`. Raises PlanError."""
    if raw is None or isinstance(raw, str):
        return None if raw is None else Spec(name=raw)
    if isinstance(raw, Mapping) and len(raw) == 1:
        [(name, options)] = raw.items()
        return Spec(name=str(name), options=dict(options or {}))
    raise PlanError(
        "scorer: expected a name, or a name with its options: {words: {ignore_case: true}}"
    )


def scorer_of(spec: Spec) -> Scorer:
    """Return the scorer of a name and its options. Raises PlanError if they are unknown."""
    return _scorer(current(), spec.name, canonical(spec.options))


@lru_cache(maxsize=256)
def _scorer(scope: Scope | None, name: str, options: str) -> Scorer:
    """Return a cached scorer: thousands of cases share one. Names belong to a scope."""
    make = registry.load(SCORERS, name)
    checked = registry.check_options(make, msgspec.json.decode(options), f"scorer.{name}")
    made: Scorer = make(**checked)
    return made


def list_versions(scorers: Iterable[tuple[str, Scorer]]) -> dict[str, int]:
    """Return the versions of named scorers and of those within them, such as `any_of/exact`.

    An option can keep an older reading: the latest version of a name decides.
    """
    found: dict[str, int] = {}
    for name, scorer in scorers:
        found[name] = max(scorer.version, found.get(name, 0))
        place = name
        decisive: Any = scorer.decisive
        while isinstance(decisive, Mapping) and {"scorer", "version"} <= decisive.keys():
            place = f"{place}/{decisive['scorer']}"
            found[place] = max(decisive["version"], found.get(place, 0))
            decisive = decisive.get("options")
    return dict(sorted(found.items()))


def list_options(scorers: Iterable[tuple[Spec, Scorer]]) -> dict[str, object]:
    """Return the options of scorers that differ from the defaults, by the names of `list_versions`.

    A name has a list if its cases do not share one set of options.
    """
    found: dict[str, dict[str, Mapping[str, object]]] = defaultdict(dict)
    for spec, scorer in scorers:
        place, name, options = spec.name, spec.name, spec.options
        decisive: Any = scorer.decisive
        while isinstance(decisive, Mapping) and {"scorer", "version"} <= decisive.keys():
            _note_options(found[place], name, options, inner="scorer")
            name, options, decisive = decisive["scorer"], decisive["options"], decisive["options"]
            place = f"{place}/{name}"
            if {"scorer", "version"} <= options.keys():
                options = {}
        _note_options(found[place], name, options)
    return {
        place: one[0] if len(one) == 1 else one
        for place, each in sorted(found.items())
        if any(one := [each[text] for text in sorted(each, key=lambda text: (len(text), text))])
    }


def _note_options(
    each: dict[str, Mapping[str, object]], name: str, options: Mapping[str, object], inner: str = ""
) -> None:
    """Add the options that differ from the defaults of a scorer, without the scorer within it."""
    known = registry.options_of(registry.load(SCORERS, name))
    changed = {
        option: value
        for option, value in sorted(options.items())
        if option != inner and (option not in known or value != known[option].default)
    }
    each[canonical(changed)] = changed


def check_scorer(spec: Spec, place: str) -> None:
    """Raise PlanError for an invalid scorer of a whole module, once and not for each case."""
    try:
        scorer_of(spec)
    except PlanError as error:
        raise PlanError(
            [f"{place}scorer: {problem}" for problem in error.problems], hint=error.hint
        ) from error


def is_foreign(spec: Spec) -> bool:
    """Return True if code outside serve-eval scores, also within a scorer such as any_of."""
    inner = spec.options.get("scorer")
    return bool(extensions.find(SCORERS, spec.name)) or (
        isinstance(inner, str | Mapping) and is_foreign(spec_of(inner) or spec)
    )


def usual_scorer(expected: object) -> Spec:
    """Return the scorer of a case that names none."""
    if isinstance(expected, Mapping) and "answer" not in expected:
        name = next((scorer for key, scorer in _BY_FIELD.items() if key in expected), _EXACT)
        return Spec(name=name)
    return Spec(name=_EXACT)


CASE, FORMAT, PARTIAL, OTHER = "case", "format", "partial match", "other"
TRUNCATED = "truncated"
_CODE = {
    ExitReason.PASSED: "code passed",
    ExitReason.RAISED: "code raised",
    ExitReason.EXITED: "code exited",
    ExitReason.KILLED: "code killed",
    ExitReason.TIMEOUT: "code timed out",
}
_NO_ANSWER = (Outcome.EMPTY, Outcome.REFUSED, Outcome.REASONING_ONLY)
_DIGIT = re.compile(r"\d")


def failure_mode(expected: object, response: Response, score: Score) -> str:
    """Return the failure mode of an answer that is not correct.

    The first of these applies: the answer as a whole (empty, refused, reasoning only, truncated),
    the mode from the scorer, the result of running the answer, an unparsed answer, the difference
    of its text from the expected ones.
    """
    if score.outcome in _NO_ANSWER:
        return score.outcome.value.replace("_", " ")
    if response.truncated:
        return TRUNCATED
    if score.mode is not None:
        return score.mode
    if response.ran is not None:
        return _CODE[response.ran.ended]
    if score.outcome is Outcome.UNPARSED:
        return Outcome.UNPARSED.value
    modes = [text_mode(text, response.text) for text in _texts(expected)]
    rest = PARTIAL if score.outcome is Outcome.PARTIAL else OTHER
    return next((mode for mode in (CASE, FORMAT, PARTIAL) if mode in modes), rest)


def text_mode(expected: str, text: str) -> str:
    """Return how a text differs from the expected one.

    The difference is in case, in format (white space, punctuation, digits for words), in length
    (more or less of the same text), or other.
    """
    expected, text = expected.strip(), text.strip()
    if text.casefold() == expected.casefold():
        return CASE
    one, other = _bare(expected), _bare(text)
    if one == other and one:
        return FORMAT
    if (len(one) > 1 and one in other) or (len(other) > 1 and other in one):
        return PARTIAL
    if len(text.split()) <= len(expected.split()) and bool(_DIGIT.search(expected)) != bool(
        _DIGIT.search(text)
    ):
        return FORMAT
    return OTHER


def _bare(text: str) -> str:
    """Return only the letters and digits of a text, case-folded."""
    return "".join(character for character in text.casefold() if character.isalnum())


def _texts(expected: object) -> Iterable[str]:
    """Yield the texts of an expectation: itself, its items, those under `answer`."""
    if isinstance(expected, Mapping):
        yield from _texts(expected.get("answer"))
    elif isinstance(expected, list | tuple):
        for one in expected:
            yield from _texts(one)
    elif isinstance(expected, str | int | float):
        yield str(expected)
