"""Find the letter or short answer in an answer to a question about media, and score it.

MMMU's own rules miss common forms, such as "**Answer: B**" and "D) Phytoplasma". The suite
therefore has two post-processors, by option: `strip_thinking_mmmu`, and `kimi_k3_mmmu` for an
answer with channels, `<|open|>response<|sep|>...<|close|>response`. Their rules are part of the
number and are kept as they are, with their quirks: "Answer: because" states the letter B.

Rules of the post-processors: those of the mixed-modality tasks of TensorRT-LLM's suite. Of an
answer with sections, such as "audio: ...", only that of the asked medium counts.

Rules of MMMU: Yue et al. 2023, eval/utils of MMMU-Benchmark/MMMU, as mmmu_val of
lm-evaluation-harness applies them.

Rules of MMMU-Pro: the last line that states a letter, else MMMU's, as in the task mmmu_pro of
TensorRT-LLM's suite. A line states a letter if it begins with "answer" or "final answer". A word
after it can pass for a letter, as in "Answer: because", and "Answer is not clear" states the letter
I of a question with nine options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from string import ascii_uppercase
from typing import Literal

from serve_eval.schema import Score
from serve_eval.scorers._expected import grade_value

PostProcess = Literal["none", "strip_thinking_mmmu", "kimi_k3_mmmu"]

SHORT, LONG = 50, 100
"""Characters of a text, and of a last line, that are taken as the answer itself."""
TAIL = 200
"""Last characters among which a letter may end a long text."""

_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_LETTER = re.compile(r"\(?([A-Za-z])\)?\.?")
_BOXED = re.compile(r"\\boxed\{([^}]+)\}")
_ASIDE = re.compile(r"\((?:or|approximately|accepting|and|about)\b", re.IGNORECASE)
_CHANNEL = re.compile(
    r"<\|open\|>\s*+response\s*+<\|sep\|>(.*?)"
    r"(?:<\|close\|>\s*+(?:response|message)|<\|open\|>|\Z)",
    re.DOTALL,
)
_TOKEN = re.compile(r"<\|[^|]*\|>")


def apply_post_process(text: str, by: PostProcess, last: str = "E") -> str:
    """Return the text that is scored. The letters of the options go up to `last`."""
    if by == "none":
        return text
    if by == "kimi_k3_mmmu":
        for span in reversed(_CHANNEL.findall(text)):
            if answer := shorten_answer(_TOKEN.sub(" ", span).strip(), last):
                return answer
    return shorten_answer(strip_thinking(text), last)


def strip_thinking(text: str) -> str:
    """Return what follows the last </think>, or precedes thoughts that never ended."""
    _, ended, answer = text.rpartition("</think>")
    return (answer if ended else text.partition("<think>")[0]).strip()


def shorten_answer(text: str, last: str) -> str:
    """Return the letter or the short text that an answer gives.

    The first that applies: a stated letter, a letter at the start, a short text, the last box, a
    letter at the end, a text that is short without its last aside, a short last line, everything.
    Takes time proportional to the length of the text.
    """
    letters = f"A-{last}a-{last.lower()}"
    stated = re.search(rf"\b[Aa]nswer\s*+(?:is|:)\s*+\(?\s*+([{letters}])", text)
    if stated:
        return stated[1].upper()
    text = _BOLD.sub(r"\1", text)
    if (letter := find_leading_letter(text, letters)) is not None:
        return letter
    if len(text) <= SHORT:
        return _unwrap_letter(text.strip())
    return next(_find_endings(text, last), text)


def find_leading_letter(text: str, letters: str) -> str | None:
    """Return the letter at the start, if a mark, a line end, a capital or nothing follows it."""
    found = re.match(rf"\(?([{letters}])\)?", text)
    if found is None:
        return None
    tail = text[found.end() :]
    after = tail.lstrip()
    space = tail[: len(tail) - len(after)]
    ends = not after or "\n" in space or "\r" in space
    if ends or after[0] in ".:" or (space and after[0] in ascii_uppercase):
        return found[1].upper()
    return None


def _find_endings(text: str, last: str) -> Iterator[str]:
    """Yield the answers at the end of a long text, the most trusted first."""
    boxes = _BOXED.findall(text[: text.rfind("}") + 1])
    if boxes:
        yield boxes[-1].strip()
    letter = re.search(rf"([A-{last}])\)?[.\s*]*$", text[-TAIL:])
    if letter:
        yield letter[1]
    trimmed = _trim_aside(text)
    if 0 < len(trimmed) <= SHORT:
        yield trimmed
    line = _BOLD.sub(r"\1", text.rstrip().rsplit("\n", 1)[-1].strip())
    if 0 < len(line) <= LONG:
        yield _unwrap_letter(line)


def _trim_aside(text: str) -> str:
    """Return the text without a last "(or ...)", "(about ...)" and the like."""
    text = text.rstrip()
    if text.endswith(")"):
        aside = _ASIDE.search(text, text.rfind(")", 0, -1) + 1)
        if aside:
            text = text[: aside.start()]
    return text.strip()


def _unwrap_letter(text: str) -> str:
    letter = _LETTER.fullmatch(text)
    return letter[1].upper() if letter else text


def find_given_letter(text: str, options: Sequence[str]) -> str | None:
    """Return the last letter as "(A)", else as a word of its own, else by an option's text.

    The option whose text comes last is used only in answers of more than five words.
    """
    for mark in ",.!?;:'":
        text = text.strip(mark)
    text = f" {text} "
    forms: list[tuple[str, Callable[[int], str]]] = [
        (text, lambda i: f"({ascii_uppercase[i]})"),
        (text, lambda i: f" {ascii_uppercase[i]} "),
    ]
    if len(text.split()) > 5:
        forms.append((text.lower(), lambda i: options[i].lower()))
    for searched, form in forms:
        places = [searched.rfind(form(i)) for i in range(len(options))]
        if places and max(places) >= 0:
            return ascii_uppercase[places.index(max(places))]
    return None


LAST_LETTER = {"image": "E", "video": "D"}
"""The last letter of the options of a question about such a medium."""

_SECTION = re.compile(r"(?im)^[^\S\n]*+(image|audio|video)\s*+:")


def find_section(medium: str, text: str) -> str:
    """Return the last section that a text has for a medium, on one line, or the text."""
    heads = list(_SECTION.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in reversed(list(zip(heads, ends, strict=False))):
        if head[1].casefold() == medium:
            return " ".join(text[head.end() : end].split())
    return text


def find_letter(text: str, last: str) -> str | None:
    """Return the stated letter, else one at the start, else the last one that stands alone.

    Letters go from A up to `last`, and may be small: the article in "a dog" is one.
    """
    letters = f"A-{last}a-{last.lower()}"
    stated = re.search(rf"\b(?:answer\s*+(?:is|:)?|option)\s*+\(?\s*+([{letters}])", text)
    if stated:
        return stated[1].upper()
    if (leading := find_leading_letter(text.lstrip(), letters)) is not None:
        return leading
    alone = re.findall(rf"(?<![A-Za-z])([{letters}])(?![A-Za-z])", text)
    return alone[-1].upper() if alone else None


STATED = "stated_letter"

_AFTER_ANSWER = re.compile(r"(?i)\banswer\b(?:\s+is\b)?[*_\s:]*(?:\\boxed\{)?\(?(?-i:([A-I]))\b")
_MARKS = ("could be ", "so ", "is ", "thus ", "therefore ", "final ", "answer ", "result ")
_NUMBERS = (
    re.compile(r"-?\b\d{1,3}(?:,\d{3})+\b"),
    re.compile(r"(?:-|(?<!\d))\d+(?:\.\d+)?e[+-]?\d+"),
    re.compile(r"(?:(?:-|(?<!\d))(?:\d+\.\d+|\d+\b)|-?\.\d+)(?!e[+-]?\d+)(?![,\d])"),
)
"""The original's, except that a run of digits is matched only from its first digit, which finds the
same and is not quadratic."""


def score_choice(text: str, target: str, options: Sequence[str]) -> Score:
    """Score 1 if the letter that the answer gives is the target.

    Without a letter the answer is `unparsed`; the original guesses one at random. The parts have
    the last letter that is called the answer, if there is one.
    """
    letter = find_given_letter(text, options)
    stated: list[str] = _AFTER_ANSWER.findall(text)
    parts = {STATED: float((stated[-1] if stated else letter) == target)}
    return grade_value(float(letter == target), letter, parts)


def score_short_answer(text: str, accepted: Iterable[str]) -> Score:
    """Score 1 if a key phrase contains one of the accepted answers, or a number equal to one.

    A key phrase follows a word such as "is" or "answer" in one of the lines; without such a word it
    is the whole text. Numbers are equal to two decimals.
    """
    keys = list(_key_phrases(text))
    wanted = {form for answer in accepted for form in _forms(answer)}
    words = [form for form in wanted if isinstance(form, str)]
    found = [
        *keys,
        *(number for key in keys for pattern in _NUMBERS for number in pattern.findall(key)),
    ]
    said = [form for one in found for form in _forms(one)]
    right = float(
        any(
            any(word in form for word in words) if isinstance(form, str) else form in wanted
            for form in said
        )
    )
    return grade_value(right, " | ".join(keys), {STATED: right})


def _key_phrases(text: str) -> Iterator[str]:
    text = text.strip().strip(".").lower()
    lines, any_found = text.split("\n"), False
    for i, line in enumerate(lines):
        shortest = ""
        for mark in (*_MARKS, "=") if i == len(lines) - 1 else _MARKS:
            if mark in line:
                tail = line.rsplit(mark, 1)[1].strip()
                if not shortest or len(tail) < len(shortest):
                    shortest = tail
        if shortest and shortest not in list(":,.!?;'"):
            any_found = True
            yield shortest
    if not any_found:
        yield text


def _forms(text: str) -> list[str | float]:
    """Return the forms that are compared: a number to two decimals, else the text in lower case.

    A single character has a space before or after it.
    """
    text = text.strip()
    try:
        return [round(float(text.replace(",", "")), 2)]
    except ValueError:
        text = text.lower()
    return [f" {text}", f"{text} "] if len(text) == 1 else [text]


_LINE_WITH_ANSWER = re.compile(
    r"(?i)\s*+(?:final\s++)?answer\s*+(?:is\s*+)?[:\-]?\s*+\(?\s*+([A-J])",
)


def score_pro_choice(text: str, target: str, options: Sequence[str]) -> Score:
    """Score 1 if the letter that the answer gives is the target.

    Without a letter the answer is `unparsed`; the original guesses one at random.
    """
    letter = find_stated_letter(text, options) or find_given_letter(text, options)
    return grade_value(float(letter == target), letter)


def find_stated_letter(text: str, options: Sequence[str]) -> str | None:
    """Return the letter of an option that the last line with one states."""
    for line in reversed(text.splitlines()):
        stated = _LINE_WITH_ANSWER.match(line)
        if stated and stated[1].upper() in ascii_uppercase[: len(options)]:
            return stated[1].upper()
    return None
