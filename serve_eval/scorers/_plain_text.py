"""Convert texts to the form in which answers are compared.

`$\\boxed{\\text{(C)}}$`, `**C**` and a full-width C are read as C. What was in a box stands between
the characters BOX and UNBOX, because a box states an answer. Every step takes time proportional to
the length of the text, also for text that never closes a brace.
"""

from __future__ import annotations

import html
import re
import unicodedata
from functools import lru_cache

from serve_eval.errors import PlanError

_BEFORE = "\"'`*_([{,;:!?\u201c\u2018\u201e\u00ab\u00bf\u00a1"
_BEHIND = "\"'`*_)]},;:!?.\u201d\u2019\u201c\u2018\u00bb\u2026"
"""Characters around a word that are not part of it. A sign, a currency, C++ and .5 keep theirs."""


def plain(text: str, *, ignore_case: bool = True, ignore_punctuation: bool = True) -> str:
    """Return a text with single spaces, without markup and punctuation, in lower case."""
    words = (strip_latex(text) if ignore_punctuation else text).split()
    if ignore_punctuation:
        words = [word for each in words if (word := each.lstrip(_BEFORE).rstrip(_BEHIND))]
    joined = " ".join(words)
    return joined.casefold() if ignore_case else joined


_LEFT_OUT = str.maketrans("", "", ".?!")


def clean(text: str) -> str:
    """Return an answer in lower case, stripped, without any of `.?!`."""
    return text.lower().translate(_LEFT_OUT).strip()


def check_alone(scorer: str, as_biochatter: bool, *usual: bool) -> None:
    """Raise PlanError if an option other than `as_biochatter` is set: it would have no effect."""
    if as_biochatter and not all(usual):
        raise PlanError(
            f"{scorer}: as_biochatter decides how answers are compared: leave out the other options"
        )


BOX, UNBOX = "\ue000", "\ue001"
"""Characters for private use that begin and end a box. They are removed from texts first."""
_JOINT = "\ue002"
"""Character where something was removed: a space if words meet there."""
THIN = "\u2009"
"""Thin space: what LaTeX's short spaces become, since they separate thousands."""

_LATEX = re.compile(
    r"""\\{1,2}(?P<box>boxed|fbox|framebox)\s*+\{
    | \\{1,2}(?:boxed|fbox)\s*+(?P<bare>[A-Za-z0-9]+)
    | \\{1,2}(?P<wrap>(?:text|math)[a-z]{0,8}|emph|boldsymbol|bm|pmb|[mh]box|underline
        |operatorname)\*?\s*+\{
    | (?P<drop>\\{1,2}(?:left|right|[Bb]igg?[lrm]?|displaystyle|textstyle|bf|rm|bfseries
        |[Ll]arge|LARGE|[Hh]uge)(?![A-Za-z])\s?|\\!\s?)
    | (?P<thin>\\[,;:>]|\\thinspace(?![A-Za-z]))
    | (?P<wide>\\(?:\ |q?quad(?![A-Za-z])))
    | (?P<math>\\{1,2}[()\[\]]|\$\$)
    | (?P<dollar>\$)
    | \\(?P<escaped>[%&\#_$])
    | (?P<brace>\\[{}])
    | (?P<line>\\\\)
    | (?P<open>\{)
    | (?P<close>\})""",
    re.VERBOSE,
)
_CLOSES_MATH = re.compile(r"\$(?=\S)[^$\n]*+(?<=\S)\$(?!\d)")
_BRACES = {"\\{": "(", "\\}": ")"}

_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9_]{0,20})(?:\s[^<>]{0,200})?/?>")
_BLOCK = re.compile("p|br|div|li|tr|ul|ol|table|h[1-6r]|blockquote|think|pre")
_INLINE = re.compile("[abiu]|em|strong|span|mark|code|tt|small|big|font|center|t[dh]")
_ANSWER = re.compile("(?:final_?)?answer|final|choice")
_SCRIPTS = {"sup": ("^{", "}"), "sub": ("_{", "}")}

_EMPHASIS = re.compile(r"(?<![^\W_])(?<![*_])[*_]++(?=\S)|(?<=[^\s*_])[*_]++(?![^\W_]|\{)|`+")
_MEETING = re.compile(f"(?<=[^\\W\\d_]){_JOINT}+(?=[^\\W\\d_])")
_STRUCK = re.compile(r"~~[^~\n]{1,200}~~")


def strip_markup(text: str) -> str:
    """Return the text without markup, with BOX and UNBOX around what was boxed."""
    if "&" in text:
        text = html.unescape(text)
    if not text.isascii():
        text = text.translate(_typography())
    if "<" in text:
        text = _TAG.sub(_replace_tag, text)
    if "~~" in text:
        text = _STRUCK.sub("", text)
    if "\\" in text or "$" in text:
        text = _strip_latex(text)
    if "*" in text or "_" in text or "`" in text:
        text = _EMPHASIS.sub("", text)
    return text


def strip_latex(text: str) -> str:
    """Return the text without LaTeX's wrappings and boxes; the rest is as it was."""
    if "\\" not in text and "$" not in text:
        return text
    return _strip_latex(text).replace(BOX, "").replace(UNBOX, "")


def _strip_latex(text: str) -> str:
    stripped = _LATEX.sub(_Braces(text).replace, text)
    return _MEETING.sub(" ", stripped).replace(_JOINT, "")


class _Braces:
    """Open braces of a text, each with its closing text, and whether mathematics is open."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.closers: list[str] = []
        self.in_math = False

    def replace(self, found: re.Match[str]) -> str:
        """Return what stands for a match. Matches come in the order of the text."""
        match found.lastgroup:
            case "box" | "wrap" | "open" as kind:
                closer = {"box": UNBOX, "wrap": _JOINT, "open": "}"}[kind]
                self.closers.append(closer)
                return {"box": BOX, "wrap": _JOINT, "open": "{"}[kind]
            case "close":
                return self.closers.pop() if self.closers else "}"
            case "bare":
                return f"{BOX}{found['bare']}{UNBOX}"
            case "dollar":
                return self._replace_dollar(found)
            case "escaped":
                return found["escaped"]
            case "brace":
                return _BRACES[found[0]]
            case kind:
                return {"drop": "", "thin": THIN, "math": _JOINT}.get(str(kind), " ")

    def _replace_dollar(self, found: re.Match[str]) -> str:
        """Remove a dollar sign around math, which no space touches on the inside; keep money."""
        if not self.in_math and not _CLOSES_MATH.match(self.text, found.start()):
            return "$"
        self.in_math = not self.in_math
        return _JOINT


def _replace_tag(found: re.Match[str]) -> str:
    closing, name = bool(found[1]), found[2].lower()
    if _ANSWER.fullmatch(name):
        return "\n" if closing else "\nAnswer: "
    if name in _SCRIPTS:
        return _SCRIPTS[name][closing]
    return "\n" if _BLOCK.fullmatch(name) else "" if _INLINE.fullmatch(name) else found[0]


@lru_cache(maxsize=1)
def _typography() -> dict[int, str | None]:
    """Return replacements of letters, digits and marks that stand for those of ASCII."""
    table: dict[int, str | None] = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
    letters = [*range(0x1D400, 0x1D800), *range(0x249C, 0x24EA), *range(0x1F130, 0x1F14A)]
    for code in letters:
        plain = unicodedata.normalize("NFKC", chr(code))
        if plain.isascii() or plain.isdigit():
            table[code] = plain
    for first in (0x1F150, 0x1F170):  # white letters in black circles and squares
        table |= {first + i: chr(ord("A") + i) for i in range(26)}
    hidden = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad\ufe0f" + BOX + UNBOX + _JOINT
    table |= dict.fromkeys(map(ord, hidden))
    marks = "\u3000 \u3002.\u3001,\u3010[\u3011]\u2018'\u2019'"
    table |= dict.fromkeys(map(ord, "\u201c\u201d\u201e\u00ab\u00bb"), '"')
    table |= {ord(marks[i]): marks[i + 1] for i in range(0, len(marks), 2)}
    return table | {0x066B: ".", 0x066C: ",", 0x066A: "%"}  # Arabic marks of numbers


_LATIN_MEETS_EASTERN = re.compile(
    r"(?<=[A-Za-z])(?=[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])"
    r"|(?<=[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])(?=[A-Za-z])"
)


def prepare(text: str) -> str:
    """Return the text without markup and empty lines, with one space between words."""
    text = strip_markup(text)
    if not text.isascii():
        text = _LATIN_MEETS_EASTERN.sub(" ", text)
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(filter(None, lines))


@lru_cache(maxsize=512)
def prepare_words(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the words without markup; None if they differ in it only, such as * and **."""
    plain = tuple(map(prepare, words))
    return None if "" in plain or len(set(plain)) < len(plain) else plain
