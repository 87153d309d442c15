"""Patterns of the sentences with which a text states one of a few words.

They run on text that `_stated` prepared: no markup, one space or line end between words. Each
repetition is possessive or bounded, so a search takes time proportional to the text's length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from serve_eval.scorers._plain_text import BOX, UNBOX

MARKS = rf"[\s\"'(\[{{:$>{BOX}\u2026]{{0,8}}+"
"""Marks before the word that is stated."""
_CLOSE = rf"[\"')\]}}${UNBOX}]{{0,6}}+"
_BEGIN, _END = r"(?<![\w+#-])(?<![nN]/)", r"(?![\w+#]|-\w)"

_NOUN = (
    r"(?:(?<![^\W_])(?i:answers?|antwort|r\u00e9ponse|respuesta|resposta|risposta)(?![a-z])"
    r"|\u043e\u0442\u0432\u0435\u0442|\u7b54\u6848|\u7b54\u3048|\u56de\u7b54|\uc815\ub2f5)"
)
_OTHER_NOUN = (
    r"(?<![^\W_])(?i:(?:correct|right|best|most\slikely|my|final)"
    r"(?:\s(?:one|option|choice|letter|statement|response|guess|pick))?"
    r"|option|choice|letter|verdict|conclusion|solution|result)(?![a-z])"
)
_IS = (
    r"(?i:is|are|was|(?:would|should|must|will|has\sto)\sbe|ist|lautet|est|es|\u00e9|\u00e8"
    r"|\u0435\u0441\u0442\u044c)(?!\w)"
)
_COLON = r"\s?(?:[:=\u2192]|[-=]>|[-\u2013\u2014](?=\s))\s?"
_ASIDE = r"(?:\s?\([^()\n]{0,60}\))?"
_FILLERS = r"(?:\s[\w'\u2019]{1,20}+){0,6}?"
_EASTERN = r"\s?[\u662f\u4e3a\u306f\uc740\ub294]\s?:?\s?"
_LINK = rf"{_ASIDE}(?:{_COLON}|{_FILLERS}\s{_IS}\s?[:=]?\s?|{_FILLERS}\s?:\s?|{_EASTERN}|\s?\n)"
_ADVERBS = (
    r"(?:(?i:clearly|definitely|certainly|surely|simply|just|therefore|thus|then|most|likely"
    r"|probably|for\ssure|indeed|actually|obviously|(?:the\s)?(?:correct\s|final\s|best\s)?"
    r"(?:option|choice|letter|answer|one))(?:\s?:)?\s){0,4}"
)
_CHOOSE = (
    r"(?<!\w)(?i:choos(?:e|ing)|chose|pick(?:ing)?|select(?:ing)?|go(?:ing)?\swith|opt\sfor"
    r"|vote\sfor|settle\son)\s(?i:(?:the\s)?(?:option|choice|answer|letter)\s)?"
)
_RIGHT = (
    r"\s(?i:is|must\sbe|should\sbe|would\sbe|has\sto\sbe)\s"
    r"(?i:(?:clearly|definitely|indeed|therefore|thus|obviously|the|most|likely|only|probably)\s)"
    r"{0,3}(?i:correct|right|best|true|accurate|valid|answer)(?!\w)(?!\s?\?)"
)
_VERBS = (
    r"(?:is|are|was|were|would|does|do|did|has|have|can|could|cannot|can['\u2019]t|isn['\u2019]t"
    r"|doesn['\u2019]t|must|seems|might|may|fails|also|alone)(?!\w)"
)
_LABELS = r"(?i:(?:option|choice|answer)\s)?[\"'(\[{]{0,3}"
_SO = (
    r"(?:(?<!\w)(?i:is|be|therefore|thus|hence|so|with|pick|choose|select|say)|['\u2019]s|[:=\u2192>])"
    r",?\s(?i:(?:the\s)?(?:option|choice|letter|answer)\s)?"
)

NEGATED_BEHIND = re.compile(
    rf"{_CLOSE}\s(?i:(?:is|was|are|would\sbe|seems|looks)\s(?:clearly\s|definitely\s|also\s)?"
    r"(?:not|wrong|incorrect|false|invalid|impossible|never|out)|isn['\u2019]t|wasn['\u2019]t"
    r"|cannot|can['\u2019]t|doesn['\u2019]t|won['\u2019]t)(?!\w)"
)
QUESTION = re.compile(rf"{_CLOSE}\s?\?")
_BEFORE_NEGATED = re.compile(
    r"(?i:(?<!\w)(?:not|never|neither|nor|cannot|rul(?:e|es|ed|ing)\sout|eliminat\w{1,4}"
    r"|exclud\w{1,4}|reject\w{0,4}|unlike|except|than|non|nicht)|n['\u2019]t"
    r"|\u4e0d\u662f|\u975e|\u4e0d)"
    r"\s(?i:(?:be|to\sbe|the|option|choice|answer|letter|choose|pick|select|necessarily)\s){0,3}"
    r"[\"'(\[]{0,2}\Z"
)
RETRACTED = re.compile(
    r"(?<!\w)(?i:wait|actually|scratch\sthat|correction|on\ssecond\sthought|i\smeant?|sorry|oops"
    r"|hold\son|let\sme\sre\w{1,12})(?!\w)"
)
JOINED = re.compile(r"\s(?:and|or|nor)\s[\"'(\[]{0,2}(\w{1,20})(?![\w+#-])")
"""Text behind a letter that is one of two."""
AS_WORD = re.compile(
    r"\s(?!(?i:is|because|since|as|for|by|with|and|or|but|due|given|which|per|would|was)(?!\w))"
    r"[a-z]"
)
"""Text behind the article "a" or the word "I", but not behind a letter that is stated."""


_ANSWERS = (
    "answer antwort r\u00e9ponse respuesta resposta risposta"
    " \u043e\u0442\u0432\u0435\u0442 \u7b54\u6848 \u7b54\u3048 \u56de\u7b54 \uc815\ub2f5"
)
STARTS: Mapping[str, str] = {
    "answer": _ANSWERS,
    "adjacent": _ANSWERS,
    "other": "correct right best most my final option choice letter verdict conclusion solution"
    " result",
    "chosen": "choos chose pick select go opt vote settle",
}
"""Beginnings of the sentences of a pattern, in small letters."""


class Patterns(NamedTuple):
    """Patterns for one set of words; the group `word` is the word."""

    answer: re.Pattern[str]
    adjacent: re.Pattern[str]
    other: re.Pattern[str]
    chosen: re.Pattern[str]
    right: re.Pattern[str]
    boxed: re.Pattern[str]
    beginning: re.Pattern[str]
    alone: re.Pattern[str]
    last: re.Pattern[str]
    label: re.Pattern[str]
    listed: re.Pattern[str]
    spaced: re.Pattern[str]
    mentioned: re.Pattern[str]


@lru_cache(maxsize=512)
def compile_patterns(words: tuple[str, ...]) -> Patterns:
    """Return the patterns for words.

    A word matches in any case. So does a letter where it is stated and punctuation or nothing
    follows. In running text a letter matches only in its own case, and not before a small word.
    """
    ordered = sorted(words, key=len, reverse=True)

    def either(letter: str) -> str:
        forms = (
            letter.replace("@", re.escape(word))
            if len(word) == 1 and word.isalpha()
            else f"(?i:{re.escape(word)})"
            for word in ordered
        )
        return f"(?P<word>{'|'.join(forms)}){_END}"

    ends = r"(?:[,;:!]|\.(?!\w)|\s[-\u2013\u2014]|\s?(?:\n|\Z))"
    stated = either(rf"(?:@|(?i:@)(?={_CLOSE}{ends}|[)\]]))")
    own, any_case = either("@"), either("(?i:@)")
    in_text = either(r"@(?!['\u2019]|\s?[=^+*<>])")
    under = any_case.replace("?P<word>", "?P<under>")
    following = any_case.replace("?P<word>", "?P<next>")
    mark = rf"(?:[)\]}}{UNBOX}]|[.:](?=\s|\Z)|\s?=\s|\s[-\u2013\u2014]\s)"
    closed = rf"(?=[\"' ]{{0,4}}(?:[).:,;!\]}}\n{UNBOX}]|[-\u2013\u2014]\s|\Z))"
    return Patterns(
        answer=re.compile(rf"{_NOUN}{_LINK}{_ADVERBS}{MARKS}{stated}"),
        adjacent=re.compile(rf"{_NOUN}\s{MARKS}{stated}"),
        other=re.compile(
            rf"{_OTHER_NOUN}{_ASIDE}(?:{_COLON}|{_FILLERS}\s{_IS}\s?[:=]?\s?)"
            rf"{_ADVERBS}{MARKS}{stated}"
        ),
        chosen=re.compile(rf"{_CHOOSE}{MARKS}{own}"),
        right=re.compile(rf"{_BEGIN}{own}{_CLOSE}{_RIGHT}"),
        boxed=re.compile(
            rf"{BOX}\s?(?i:(?:(?:the\s)?(?:final\s)?(?:answer|option|choice)\s?(?:is|:)?\s?))?"
            rf"{MARKS}{any_case}(?=[\"')\]}}.!,:; ]{{0,6}}(?:{UNBOX}|\Z)|[)\]:.]\s)"
        ),
        beginning=re.compile(rf"\A{MARKS}{any_case}{closed}"),
        alone=re.compile(rf"(?:\A|\n){MARKS}{own}{_CLOSE}[.!]{{0,3}}+\s?\Z"),
        last=re.compile(rf"{_SO}{MARKS}{own}{_CLOSE}[.!]{{0,3}}+{_CLOSE}\s?\Z"),
        label=re.compile(
            rf"(?:(?<=[\s;,|/.:{BOX}])|\A|(?=[(\[])){_LABELS}{any_case}{mark}(?!\s?{_VERBS})"
            rf"|(?:(?<=\n)|\A){_LABELS}{following}{_CLOSE}(?=\s?(?:\n|\Z))"
        ),
        listed=re.compile(
            rf"{_CLOSE}(?:\s?(?:[/&+|\u2013\u2014]|-(?=\S))\s?|,?\s(?:and|or|und|oder|et|ou|nor)\s"
            rf"){MARKS}(?i:(?:option|choice)\s)?{any_case}"
            rf"|{_CLOSE}\s?[,;]\s?{MARKS}{following}"
            rf"(?={_CLOSE}\s?(?:[,.;/&]|(?:and|or)(?!\w)|\n|\Z))"
            rf"|{_CLOSE}[,.;]?\n{MARKS}{under}(?={_CLOSE}[.,;]?(?:\n|\Z))"
        ),
        spaced=re.compile(rf"\s{own}"),
        mentioned=re.compile(rf"{_BEGIN}{in_text}"),
    )


def find_starts(name: str, small: str) -> Iterator[int]:
    """Yield the places at which the sentences of a pattern can begin, much faster than it does."""
    for word in STARTS[name].split():
        place = small.find(word)
        while place >= 0:
            yield place
            place = small.find(word, place + 1)


def is_negated_before(text: str, place: int) -> bool:
    """Return True if a negation such as "not" or "rule out" stands before the place."""
    return _BEFORE_NEGATED.search(text[max(0, place - 48) : place]) is not None
