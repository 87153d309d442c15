"""The answer is a number, the boxed or the last one in the text, within a tolerance.

The module also extracts numbers of worked solutions, by the two filters of lm-evaluation-harness's
gsm8k task (version 3). `strict-match` takes the first number after `####`; `flexible-extract` the
last number of any kind. Both answers and the target then lose commas, dollar signs, everything up
to the last `#### ` and a final full stop, and are compared without regard to case.

1,234.5, 1 234,5 (with thin or no-break spaces), 1.234,56, `1{,}234`, 6.02e23, `6.02\\times10^{23}`,
10⁻³, 3/4, `\\frac{3}{4}`, 2½, −5, $5, 5 €, 50\\%, and digits of other scripts. A percentage is its
number before the sign; a unit and its exponent are left out. What is no number on its own, such as
`3\\sqrt{2}`, `2\\pi` or a number in another base, is not read.
"""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Literal

from serve_eval.errors import PlanError
from serve_eval.schema import Outcome, Response, Score, Scorer
from serve_eval.scorers._expected import kind, place, value_of
from serve_eval.scorers._plain_text import BOX, THIN, UNBOX, strip_markup

STRICT = "strict-match"
FLEXIBLE = "flexible-extract"

_MARK = "#### "
_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_CHARACTERS = "-$0123456789.,"
_RUN = re.compile(r"[-$0-9.,]+")
"""Every match of _FLEXIBLE is within such a run, so only the last runs need to be searched."""
_TAILS = 32, 200
"""Numbers of characters at the end of a text that mostly and nearly always have its last number."""


def scorer(
    *, absolute: float = 0.0, relative: float = 0.0, take: Literal["last", "first"] = "last"
) -> Scorer:
    """Return a scorer that gives 1 for a number within a tolerance of the expected one.

    The tolerance is `absolute`, or `relative` times the expected number, whichever is more. `take`
    says which number of the answer, or of its last box, counts. Raises PlanError for a negative
    tolerance.
    """
    if absolute < 0.0 or relative < 0.0:
        raise PlanError("numeric: `absolute` and `relative` must be 0 or more")
    read = find_last_number if take == "last" else find_first_number

    def score(expected: object, response: Response) -> Score:
        number = read(response.text)
        target = number_of(expected)
        if number is None or target is None:
            return Score(value=0.0, outcome=Outcome.UNPARSED)
        right = math.isfinite(number) and abs(number - target) <= max(
            absolute, relative * abs(target)
        )
        if right:
            return Score(value=1.0, outcome=Outcome.CORRECT, answer=f"{number!r}")
        return Score(value=0.0, outcome=Outcome.WRONG, answer=f"{number!r}", mode="another number")

    def problems(expected: object) -> list[str]:
        if number_of(expected) is not None:
            return []
        value = value_of(expected)
        told = repr(value) if isinstance(value, str | float) else kind(value)
        return [f"{place(expected)} must be a number, such as 42 or 6.02e23, not {told}"]

    def answers(expected: object) -> tuple[str, str]:
        target = number_of(expected) or 0.0
        wrong = target - 2 * max(absolute, relative * abs(target)) - max(1.0, abs(target))
        return f"{target!r}", f"{wrong!r}"

    return Scorer(version=2, score=score, answers=answers, problems=problems, scoring="inline")


def number_of(expected: object) -> float | None:
    """Return the expected number; None if it is not a finite number."""
    value = value_of(expected)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value.replace(",", "")) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def extract_strict(text: str) -> str | None:
    """Return the number after the first `#### ` that a number follows; None if there is none."""
    start = text.find(_MARK)  # takes a fraction of the time of the expression
    match = _STRICT.search(text, start) if start >= 0 else None
    return match.group(1) if match else None


def extract_last_strict(text: str) -> str | None:
    """Return the number after the last `#### ` that a number follows; None if there is none."""
    found: list[str] = _STRICT.findall(text)
    return found[-1].strip() if found else None


def extract_flexible(text: str) -> str | None:
    """Return the last number of the text, in any form; None if there is none."""
    last = text[len(text.rstrip(_CHARACTERS)) :]  # most answers end in their number
    if last.isdigit():
        return last
    for tail in (*_TAILS, len(text)):
        start = max(0, len(text) - tail)
        for run in reversed(list(_RUN.finditer(text, start))):
            if start and run.start() == start:
                break  # the run may have begun before
            found: list[tuple[str, str]] = _FLEXIBLE.findall(run.group())
            if found:
                return found[-1][0] or found[-1][1]
    return None


def normalise(text: str) -> str:
    """Return the form in which an extracted number and a target are compared."""
    if text.isdecimal():
        return text
    text = text.replace(",", "").replace("$", "")
    text = text[text.rfind(_MARK) + len(_MARK) :] if _MARK in text else text
    if text.endswith("."):
        text = text[:-1]
    elif text.endswith(".\n"):
        text = text[:-2] + "\n"
    return text.lower()


_OPAQUE = "\ue003"
"""Character for a symbol that makes the number next to it part of a larger expression."""
_PART = "\ue004"
"""Character between a whole number and the fraction behind it."""

_SPECIAL = re.compile(
    r"[^A-Za-z0-9 \t\r\n.,:;!?()=%\"'+-]|=\s?-\s|\d(?:[ ']\d{3}|,\d{1,2}(?!\d)|\.\d{3}[.,]\d)"
    r"|(?<!\d)0,\d"
)
"""Any of this needs more than the pattern of plain numbers."""
_PLAIN = re.compile(
    r"(?<![\w.])[-+]?(?:(?:\d{1,3}(?:,\d{3}){1,12}(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,5})?"
)
_SPACE = f"{THIN}\u202f\u00a0\u2007"

_TAIL, _CONTEXT = 160, 40
"""Characters at the end of a text that are read first, and those of them that are context only."""
_EASTERN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Scripts that put no space between a word and a number."""

_SUPERSCRIPTS = str.maketrans(
    "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207a\u207b", "0123456789+-"
)
_VULGAR = re.compile(r"[\u00bc-\u00be\u2150-\u215e\u2189]")
_FRACTION = re.compile(r"\\[dtc]?frac\s*+(?:\{([^{}]{0,80})\}|(\d))\s*+(?:\{([^{}]{0,80})\}|(\d))")
_REPLACED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), by)
    for pattern, by in (
        (
            r"\^\s?(?:\{\s?)?(?:\\circ|\\degree|\u00b0)(?![A-Za-z])(?:\s?\})?|\\degree(?![A-Za-z])",
            "\u00b0",
        ),
        (r"\\(?:times|cdot|ast)(?![A-Za-z])\s?|[\u00b7\u22c5\u2219\u2715]", "\u00d7"),
        (r"(?<=\d)\{([,.])\}(?=\d)", r"\1"),
        (r"(?<=\d),\s?\u2009\s?(?=\d{3})", ","),
        (r"\\(?:sqrt|root)\s*+(?:\[[^\[\]]{0,20}\])?\s*+(?:\{[^{}]{0,200}\}|\w)?", _OPAQUE),
        (r"\u221a\s?\(?[\w.]{0,40}", _OPAQUE),
        (
            r"\\(?:pi|infty|log|ln|exp|sin|cos|tan|binom|sum|int|prod|pm|mp|alpha|beta|gamma|theta"
            r"|lambda|mu|phi|varphi|omega|sigma|[dtc]?frac)(?![A-Za-z])|[\u03c0\u221e\u00b1]",
            _OPAQUE,
        ),
        (rf"{_OPAQUE}(?:\s?\{{[^{{}}]{{0,80}}\}})++", _OPAQUE),
        (r"\\[A-Za-z]+", " "),
        (r"(?<!\d)(?<!\d[ \u00d7)])\s?\^\s?(?:\{[^{}]{0,40}\}|[-+\u2212]?\w{1,20})", ""),
        (r"(?<![\w.])\d+_(?:\{\s?\d{1,2}\s?\}|\d{1,2})(?![\d,])", _OPAQUE),
        (r"(?<=[A-Za-z)}])_\{[^{}]{0,40}\}", ""),
        (r"(?<=[A-Za-z])\$(?=\d)", " "),
        (r"(?<![\d.,(\[{])(\d{1,6}),(\d{1,2})(?=\s?(?:[\u20ac\u00a3\u00a5%]|\$(?!\d)))", r"\1.\2"),
        (r"(?<![\d.,(\[{;])(0|\d{4,12}),(\d{1,12})(?!\s?[\d,)\]};])", r"\1.\2"),
        (r"(?<=[-+\u2212])\s?[$\u20ac\u00a3\u00a5]\s?(?=[\d.])", ""),
        (r"(?<![\w.)\]%\u00b0])[\u2010\u2011\u2013\ufe63](?=[\d.])", "-"),
        (rf"(?<=[=({BOX}])(\s?)[-\u2212]\s(?=[\d.])", r"\1-"),
        (
            rf"(\A|[\n:=({BOX}])(\s?[-$\u20ac\u00a3]?\s?)(\d{{1,3}})\ (\d{{3}}(?:[.,]\d{{1,6}})?)"
            rf"(?=[^\w\n{UNBOX}]{{0,20}}(?:[\n{UNBOX}]|\Z))",
            rf"\1\2\3{THIN}\4",
        ),
    )
)

_DIGITS = rf"""(?>
      \d{{1,3}}(?:\.\d{{3}}){{1,12}},\d+(?!\d)
    | \d{{1,3}}(?:\.\d{{3}}){{2,12}}(?!\.?\d)
    | \d{{1,3}}(?:[{_SPACE}'_]\d{{3}}){{1,12}}(?!\d)(?:[.,]\d+)?
    | \d{{1,3}}(?:\ \d{{3}}){{2,12}}(?![\d])(?:[.,]\d+)?
    | \d{{1,2}}(?:,\d{{2}}){{1,12}},\d{{3}}(?!\d)(?:\.\d+)?
    | (?:\d{{1,3}}(?:,\d{{3}}){{1,12}}(?!\d)|\d+)(?:\.\d+(?:{THIN}\d{{3}}){{0,12}})?
    | \.\d+
    )"""
_INTEGER = r"\d{1,3}(?:,\d{3}){1,12}+(?!\d)|\d++"
_NUMBER = re.compile(
    rf"""(?=[-+\u2212.\d])(?:(?<![\w.^{_OPAQUE}])|(?<=[{_EASTERN}]))
    (?<!{_OPAQUE}[ \u00d7/])(?<!\^\{{)
    (?P<sign>[-+\u2212]?)
    (?:(?P<whole>\d++)(?:{_PART}|[ {_SPACE}](?=\d++/\d)))?+
    (?:(?<!\d/)(?P<above>{_INTEGER})\s?/\s?(?P<below>{_INTEGER})(?!\s?/\s?\d|\.?\d)
      |(?P<digits>{_DIGITS}))
    (?:\s?[\u00d7xX*]\s?10\s?(?:\^|\*\*)\s?(?:\{{\s?(?P<braced>[-+\u2212]?\d{{1,5}})\s?\}}
      |\(?(?P<bare>[-+\u2212]?\d{{1,5}})\)?)
      |\s?(?:\^|\*\*)\s?(?:\{{\s?(?P<power>[-+\u2212]?\d{{1,5}})\s?\}}|(?P<raised>[-+\u2212]?\d{{1,5}}))
      |(?P<e>[eE][-+\u2212]?\d{{1,5}}))?+
    (?!\s?[\u00d7/]?\s?{_OPAQUE}|\s?(?:\^|\*\*)|\s?[\u00d7*]\s?10\s?\^)""",
    re.VERBOSE,
)


def numbers_in(text: str) -> list[float]:
    """Return the numbers of a text in their order. One too large for a float is infinite."""
    prepared = _prepare(text).replace(BOX, " ").replace(UNBOX, " ")
    return _read(prepared)


def find_last_number(text: str) -> float | None:
    """Return the last of the stated numbers; None if there is none.

    The end of a plain text without boxes is nearly always enough.
    """
    tail = text[-_TAIL:]
    if "\\" not in text and not _SPECIAL.search(tail):
        found = list(_PLAIN.finditer(tail))
        if found and (len(text) <= _TAIL or found[-1].start() > _CONTEXT):
            return float(found[-1][0].replace(",", ""))
    stated = find_stated_numbers(text)
    return stated[-1] if stated else None


def find_first_number(text: str) -> float | None:
    """Return the first of the stated numbers; None if there is none."""
    return next(iter(find_stated_numbers(text)), None)


def find_stated_numbers(text: str) -> list[float]:
    """Return the numbers of the last box with text, else those of the whole text.

    A box with several numbers or other symbols, and no equation, states no number.
    """
    prepared = _prepare(text)
    if BOX not in prepared:
        return _read(prepared)
    end = len(prepared)
    while (start := prepared.rfind(BOX, 0, end)) >= 0:
        closed = prepared.find(UNBOX, start, end)
        content = prepared[start + 1 : end if closed < 0 else closed]
        if content.strip():
            found = _read(content)
            single = len(found) <= 1 and _OPAQUE not in content
            return found if single or "=" in content or "\u2248" in content else []
        end = start
    return _read(prepared)


def _prepare(text: str) -> str:
    """Return the text in the form that the pattern of numbers reads."""
    if not _SPECIAL.search(text):
        return text
    text = re.sub(r"(?<=\\)([%$])", r"\1", strip_markup(text))
    text = _VULGAR.sub(_expand_vulgar, text)
    text = re.sub(
        "[\u2070\u00b9\u00b2\u00b3\u2074-\u207b]+",
        lambda found: f"^{{{found[0].translate(_SUPERSCRIPTS)}}}",
        text,
    )
    text = text.replace("\\approx", "\u2248")
    for _ in range(2):  # a fraction within a fraction
        text = _FRACTION.sub(_divide, text)
    for pattern, by in _REPLACED:
        text = pattern.sub(by, text)
    return text


def _expand_vulgar(found: re.Match[str]) -> str:
    above, _, below = unicodedata.normalize("NFKC", found[0]).partition("\u2044")
    if not above or not below:
        return found[0]
    return _after_whole(found, f"{int(above) / int(below)!r}")


def _divide(found: re.Match[str]) -> str:
    """Return the value of a fraction of two numbers; _OPAQUE for any other."""
    above, below = _read(found[1] or found[2] or ""), _read(found[3] or found[4] or "")
    plain = all(
        re.fullmatch(r"\s?[-+\u2212]?[\d.,\s]+", part or "")
        for part in (found[1] or found[2], found[3] or found[4])
    )
    if not plain or len(above) != 1 or len(below) != 1 or below[0] == 0.0:
        return _OPAQUE
    return _after_whole(found, f"{above[0] / below[0]!r}")


def _after_whole(found: re.Match[str], value: str) -> str:
    """Return the value, marked as a part of the whole number before it, if there is one."""
    start = found.start()
    return f"{_PART}{value}" if start and found.string[start - 1].isdigit() else value


def _read(text: str) -> list[float]:
    values = map(_value, _NUMBER.finditer(text))
    return [value for value in values if value is not None]


def _value(found: re.Match[str]) -> float | None:
    """Return the value of a match; None for a division by zero."""
    if found["above"] is None:
        size = float(_plain(found["digits"]) + (found["e"] or "").replace("\u2212", "-"))
    elif float(below := _plain(found["below"])) == 0.0:
        return None
    else:
        size = float(_plain(found["above"])) / float(below)
    size = _raise(size, found) + float(found["whole"] or 0)
    return -size if found["sign"] in ("-", "\u2212") else size


def _raise(size: float, found: re.Match[str]) -> float:
    """Return the size with its power of ten, or raised to its power."""
    ten = found["braced"] or found["bare"]
    power = found["power"] or found["raised"]
    try:
        if ten and "e" not in repr(size):
            return float(f"{size!r}e{ten}".replace("\u2212", "-"))
        if ten:
            return float(size * 10.0 ** int(ten.replace("\u2212", "-")))
        return size if not power else float(size ** int(power.replace("\u2212", "-")))
    except (OverflowError, ZeroDivisionError):
        return math.inf


def _plain(digits: str) -> str:
    """Return digits without separators of thousands and with a decimal point."""
    joined = re.sub(rf"[{_SPACE} '_]", "", digits)
    point, comma = joined.rfind("."), joined.rfind(",")
    if comma > point >= 0 or (comma >= 0 and joined != digits):
        return joined.replace(".", "").replace(",", ".")
    if joined.count(".") > 1:
        return joined.replace(".", "")
    return joined.replace(",", "")
