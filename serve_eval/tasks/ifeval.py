"""IFEval: 541 prompts with instructions that a program can check, such as "use no commas".

Paper: Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models". Data:
google-research (Apache-2.0). A sample asks "Write a 300+ word summary ... Do not use any commas."
The value is the share of prompts of which the answer itself follows each instruction (prompt-level
strict); the loose level, and both by instruction, are further figures. See docs/tasks.md.

Each function gives the verdict of google-research's instruction_following_eval (Apache-2.0), as lm-
eval 0.4.13 has it, also where that verdict surprises: a keyword is a regular expression, and a
language that cannot be detected counts as the right one. Two of the 541 prompts ask for a sign that
is no letter, for which the original draws a letter at random; here the sign itself is counted.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable

from serve_eval.datasets.source import KNOWN
from serve_eval.errors import PlanError
from serve_eval.schema import Task
from serve_eval.tasks._instructions_checks import PUNKT, Arguments, Checks, English, detect_language
from serve_eval.tasks._instructions_following import Following, build_task
from serve_eval.tasks._samples import NumSamples

SOURCE = KNOWN["ifeval"]
PROMPT_FROM = "ours"
ROWS = 541
FILES = ("input_data.jsonl", "ifeval_input_data.jsonl")


def task(*, num_samples: NumSamples = ROWS) -> Task:
    """Return the task, which asks the first `num_samples` prompts by chat.

    Raises PlanError for fewer than one.
    """
    if num_samples < 1:
        raise PlanError("ifeval: num_samples must be 1 or more")
    return build_task(
        "ifeval",
        Following(IFEVAL, "strict", archives=(PUNKT,), packages=("nltk", "langdetect")),
        SOURCE,
        FILES,
        rows=ROWS,
        num_samples=num_samples,
        max_tokens=1280,
    )


IFEVAL = Checks()

_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "less than": operator.lt,
    "at least": operator.ge,
}
_OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_POSTSCRIPTS = {"P.P.S": r"\s*p\.\s?p\.\s?s.*$", "P.S.": r"\s*p\.\s?s\..*$"}
_JSON_FENCES = ("```json", "```Json", "```JSON", "```")


def _relates(count: int, relation: str, number: int) -> bool:
    return _RELATIONS[relation](count, number)


@IFEVAL.of("keywords:existence", "keywords")
def _has_keywords(text: str, args: Arguments, english: English) -> bool:
    return all(re.search(one, text, re.IGNORECASE) for one in args["keywords"])


@IFEVAL.of("keywords:frequency", "keyword", "frequency", "relation")
def _repeats_keyword(text: str, args: Arguments, english: English) -> bool:
    found = re.findall(args["keyword"].strip(), text, re.IGNORECASE)
    return _relates(len(found), args["relation"], args["frequency"])


@IFEVAL.of("keywords:forbidden_words", "forbidden_words")
def _avoids_words(text: str, args: Arguments, english: English) -> bool:
    words = args["forbidden_words"]
    return not any(re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in words)


@IFEVAL.of("keywords:letter_frequency", "letter", "let_frequency", "let_relation")
def _repeats_letter(text: str, args: Arguments, english: English) -> bool:
    count = text.lower().count(args["letter"].strip().lower())
    return _relates(count, args["let_relation"], args["let_frequency"])


@IFEVAL.of("language:response_language", "language")
def _is_in_language(text: str, args: Arguments, english: English) -> bool:
    return detect_language(text) in (args["language"], None)


@IFEVAL.of("length_constraints:number_sentences", "num_sentences", "relation")
def _has_sentences(text: str, args: Arguments, english: English) -> bool:
    return _relates(len(english.sentences(text)), args["relation"], args["num_sentences"])


@IFEVAL.of("length_constraints:number_words", "num_words", "relation")
def _has_words(text: str, args: Arguments, english: English) -> bool:
    return _relates(len(english.runs(text)), args["relation"], args["num_words"])


@IFEVAL.of("length_constraints:number_paragraphs", "num_paragraphs")
def _has_paragraphs(text: str, args: Arguments, english: English) -> bool:
    """Divide by `***`. An empty paragraph is allowed at each end alone, and does not count."""
    paragraphs = re.split(r"\s?\*\*\*\s?", text)
    filled = [bool(one.strip()) for one in paragraphs]
    return all(filled[1:-1]) and sum(filled) == int(args["num_paragraphs"])


@IFEVAL.of(
    "length_constraints:nth_paragraph_first_word", "num_paragraphs", "nth_paragraph", "first_word"
)
def _starts_paragraph(text: str, args: Arguments, english: English) -> bool:
    """Divide by two line ends. Empty paragraphs count for the place, not for the number."""
    paragraphs = [one.strip() for one in text.split("\n\n")]
    count, place = sum(map(bool, paragraphs)), args["nth_paragraph"]
    if count != args["num_paragraphs"] or place > count or not (one := paragraphs[place - 1]):
        return False
    word = one.split()[0].lstrip("'").lstrip('"')
    return re.split(r"[.,?!'\"]", word)[0].lower() == str(args["first_word"]).lower()


@IFEVAL.of("detectable_content:number_placeholders", "num_placeholders")
def _has_placeholders(text: str, args: Arguments, english: English) -> bool:
    return len(re.findall(r"\[.*?\]", text)) >= int(args["num_placeholders"])


@IFEVAL.of("detectable_content:postscript", "postscript_marker")
def _has_postscript(text: str, args: Arguments, english: English) -> bool:
    marker = args["postscript_marker"].strip()
    pattern = _POSTSCRIPTS.get(marker, rf"\s*{marker.lower()}.*$")
    return re.search(pattern, text.lower(), re.MULTILINE) is not None


@IFEVAL.of("detectable_format:number_bullet_lists", "num_bullets")
def _has_bullets(text: str, args: Arguments, english: English) -> bool:
    stars = re.findall(r"^\s*\*[^\*].*$", text, re.MULTILINE)
    dashes = re.findall(r"^\s*-.*$", text, re.MULTILINE)
    return len(stars) + len(dashes) == int(args["num_bullets"])


@IFEVAL.of("detectable_format:constrained_response")
def _has_option(text: str, args: Arguments, english: English) -> bool:
    return any(option in text for option in _OPTIONS)


@IFEVAL.of("detectable_format:number_highlighted_sections", "num_highlights")
def _has_highlights(text: str, args: Arguments, english: English) -> bool:
    """Count `*this*` and `**this**`; the second form may also be found as two of the first."""
    single = re.findall(r"\*[^\n\*]*\*", text)
    double = re.findall(r"\*\*([^\n\*]*)\*\*", text)
    count = sum(bool(one.strip("*").strip()) for one in single)
    return count + sum(bool(one.strip()) for one in double) >= int(args["num_highlights"])


@IFEVAL.of("detectable_format:multiple_sections", "section_spliter", "num_sections")
def _has_sections(text: str, args: Arguments, english: English) -> bool:
    marks = re.findall(rf"\s?{args['section_spliter'].strip()}\s?\d+\s?", text)
    return len(marks) >= int(args["num_sections"])


@IFEVAL.of("detectable_format:json_format")
def _is_json(text: str, args: Arguments, english: English) -> bool:
    text = text.strip()
    for fence in _JSON_FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


@IFEVAL.of("detectable_format:title")
def _has_title(text: str, args: Arguments, english: English) -> bool:
    titles = re.findall(r"<<[^\n]+>>", text)
    return any(one.lstrip("<").rstrip(">").strip() for one in titles)


@IFEVAL.of("combination:two_responses")
def _has_two_answers(text: str, args: Arguments, english: English) -> bool:
    """Divide by six stars. An empty answer is allowed at each end alone, and does not count."""
    answers = [one.strip() for one in text.split("******")]
    filled = [one for one in answers if one]
    return all(answers[1:-1]) and len(filled) == 2 and filled[0] != filled[1]


@IFEVAL.of("combination:repeat_prompt", "prompt_to_repeat")
def _repeats_prompt(text: str, args: Arguments, english: English) -> bool:
    return text.strip().lower().startswith(args["prompt_to_repeat"].strip().lower())


@IFEVAL.of("startend:end_checker", "end_phrase")
def _ends_with(text: str, args: Arguments, english: English) -> bool:
    return text.strip().strip('"').lower().endswith(args["end_phrase"].strip().lower())


@IFEVAL.of("startend:quotation")
def _is_quoted(text: str, args: Arguments, english: English) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


@IFEVAL.of("change_case:english_capital")
def _is_in_capitals(text: str, args: Arguments, english: English) -> bool:
    return text.isupper() and detect_language(text) in ("en", None)


@IFEVAL.of("change_case:english_lowercase")
def _is_in_lowercase(text: str, args: Arguments, english: English) -> bool:
    return text.islower() and detect_language(text) in ("en", None)


@IFEVAL.of("change_case:capital_word_frequency", "capital_frequency", "capital_relation")
def _has_capital_words(text: str, args: Arguments, english: English) -> bool:
    count = sum(word.isupper() for word in english.words(text))
    return _relates(count, args["capital_relation"], args["capital_frequency"])


@IFEVAL.of("punctuation:no_comma")
def _has_no_comma(text: str, args: Arguments, english: English) -> bool:
    return "," not in text
