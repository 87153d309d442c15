"""Make texts that follow instructions: one example of each kind, and several joined.

They are for the simulated endpoint and for tests, because the data have no answers. They say
nothing sensible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from string import ascii_lowercase
from typing import Any

from serve_eval.tasks._ifbench_forms import CAPITALS
from serve_eval.tasks._ifbench_words import NAMES

WRONG = ("Well, no.", "It Is So, and Again: it is\n\n-- so, and\n* so", "???", "")
"""Texts that follow few kinds of instructions; the last one follows none."""

_SENTENCE = "It is so."
_ENGLISH = "this is a plain english sentence that says nothing about the question"
_LONG = " ".join(["stone"] * 60)

Make = Callable[[Mapping[str, Any]], str]


def _relate(relation: str, text: str, few: str) -> str:
    return text if relation == "at least" else few


def _list_paragraphs(args: Mapping[str, Any]) -> str:
    paragraphs = [_SENTENCE] * int(args["num_paragraphs"])
    paragraphs[int(args["nth_paragraph"]) - 1] = f"{args['first_word']} it is."
    return "\n\n".join(paragraphs)


_IFEVAL: dict[str, Make] = {
    "keywords:existence": lambda a: " ".join(a["keywords"]),
    "keywords:frequency": lambda a: _relate(
        a["relation"], f"{a['keyword']} " * int(a["frequency"]), _SENTENCE
    ),
    "keywords:forbidden_words": lambda a: "Yes.",
    "keywords:letter_frequency": lambda a: _relate(
        a["let_relation"],
        a["letter"] * int(a["let_frequency"]),
        "mmm" if a["letter"].lower() != "m" else "www",
    ),
    "language:response_language": lambda a: _ENGLISH,
    "length_constraints:number_sentences": lambda a: _relate(
        a["relation"], " ".join([_SENTENCE] * int(a["num_sentences"])), _SENTENCE
    ),
    "length_constraints:number_words": lambda a: _relate(
        a["relation"], " ".join([_SENTENCE] * (int(a["num_words"]) // 3 + 1)), _SENTENCE
    ),
    "length_constraints:number_paragraphs": lambda a: "\n***\n".join(
        [_SENTENCE] * int(a["num_paragraphs"])
    ),
    "length_constraints:nth_paragraph_first_word": _list_paragraphs,
    "detectable_content:number_placeholders": lambda a: "[name] " * int(a["num_placeholders"]),
    "detectable_content:postscript": lambda a: f"{_SENTENCE}\n{a['postscript_marker']} So.",
    "detectable_format:number_bullet_lists": lambda a: "\n".join(["* so"] * int(a["num_bullets"])),
    "detectable_format:constrained_response": lambda a: "My answer is maybe.",
    "detectable_format:number_highlighted_sections": lambda a: (
        "*so* it is\n" * int(a["num_highlights"])
    ),
    "detectable_format:multiple_sections": lambda a: "\n".join(
        f"{a['section_spliter']} {i + 1}\n{_SENTENCE}" for i in range(int(a["num_sections"]))
    ),
    "detectable_format:json_format": lambda a: '{"so": 1}',
    "detectable_format:title": lambda a: "<<so>>",
    "combination:two_responses": lambda a: "It is.******It is not.",
    "combination:repeat_prompt": lambda a: f"{a['prompt_to_repeat']}\n{_SENTENCE}",
    "startend:end_checker": lambda a: str(a["end_phrase"]),
    "startend:quotation": lambda a: f'"{_SENTENCE}"',
    "change_case:english_capital": lambda a: _ENGLISH.upper(),
    "change_case:english_lowercase": lambda a: _ENGLISH,
    "change_case:capital_word_frequency": lambda a: _relate(
        a["capital_relation"], "SO " * int(a["capital_frequency"]), _SENTENCE
    ),
    "punctuation:no_comma": lambda a: _SENTENCE,
}


def _place_keyword(args: Mapping[str, Any]) -> str:
    before = " ".join(["It is so."] * (int(args["n"]) - 1))
    return f"{before} {' '.join(['So'] * (int(args['m']) - 1))} {args['keyword']} it is."


def _grow(args: Mapping[str, Any]) -> str:
    step = int(args["small_n"])
    return " ".join(f"{' '.join(['Stone'] * (2 + i * step))}." for i in range(3))


def _overlap(args: Mapping[str, Any]) -> str:
    """Return a piece of the reference text and signs that it does not have."""
    text = str(args["reference_text"])[:400]
    pieces = {text[i : i + 3] for i in range(len(text) - 2)}
    others = round(len(pieces) * (100 / float(args["percentage"]) - 1))
    return text + "".join(chr(0x4E00 + i) for i in range(max(others, 0)))


def _table(header: Sequence[str], field: str, rows: int, separator: str, quote: str = "") -> str:
    lines = [separator.join(f"{quote}{name}{quote}" for name in header)]
    return "\n".join([*lines, *([separator.join([f"{quote}{field}{quote}"] * 5)] * rows)])


def _question(number: int) -> str:
    options = "\n".join(f"{letter}) so" for letter in "ABCDE")
    return f"Question {number}. {'So ' * number}?\n{options}"


_IFBENCH: dict[str, Make] = {
    "count:word_count_range": lambda a: " ".join(["So"] * int(a["min_words"])),
    "count:unique_word_count": lambda a: " ".join(f"so{i}" for i in range(int(a["N"]))),
    "count:conjunctions": lambda a: "and but for nor or so yet",
    "count:person_names": lambda a: " ".join(NAMES),
    "count:numbers": lambda a: " ".join(["7"] * int(a["N"])),
    "count:punctuation": lambda a: "So?! It is, so; as: it is! Is it? So.",
    "count:words_japanese": lambda a: "\u77f3 " * 40,
    "count:pronouns": lambda a: "she her " * int(a["N"]),
    "count:keywords_multiple": lambda a: " ".join(
        f"{a[f'keyword{i}']} " * count for i, count in enumerate((1, 2, 3, 5, 7), 1)
    ),
    "ratio:stop_words": lambda a: _LONG,
    "ratio:sentence_type": lambda a: "It is so. It is so. Is it so?",
    "ratio:sentence_balance": lambda a: "It is so. Is it so? It is so!",
    "ratio:overlap": _overlap,
    "ratio:sentence_words": lambda a: "Dogs bark. Cats purr. Cows mooo.",
    "words:alphabet": lambda a: " ".join(ascii_lowercase),
    "words:vowel": lambda a: _SENTENCE,
    "words:consonants": lambda a: "Strong plants stand there.",
    "words:palindrome": lambda a: "level radar " * 5,
    "words:prime_lengths": lambda a: "It is the stone",
    "words:start_verb": lambda a: "Write it down.",
    "words:repeats": lambda a: "It was so.",
    "words:odd_even_syllables": lambda a: "river stone river stone",
    "words:last_first": lambda a: "It is so. So it is. Is it?",
    "words:paragraph_last_first": lambda a: "so it is so",
    "words:no_consecutive": lambda a: "river stone river stone",
    "words:keywords_specific_position": _place_keyword,
    "words:words_position": lambda a: f"So {a['keyword']} is here and {a['keyword']} again.",
    "repeat:repeat_change": lambda a: f"So {str(a['prompt_to_repeat']).partition(' ')[2]}",
    "repeat:repeat_simple": lambda a: "Only output this sentence here, ignore all other requests.",
    "repeat:repeat_span": lambda a: str(a["prompt_to_repeat"])[
        int(a["n_start"]) : int(a["n_end"]) + 1
    ],
    "sentence:alliteration_increment": lambda a: "It was. Big bears go. Big bears buy.",
    "sentence:keyword": lambda a: " ".join([_SENTENCE] * (int(a["N"]) - 1) + [f"{a['word']} is."]),
    "sentence:increment": _grow,
    "format:parentheses": lambda a: "(so [so {so (so [so])}])",
    "format:quotes": lambda a: '"so \'so "so" so\' so"',
    "format:options": lambda a: (
        str(a["options"]).replace(" or ", "/").replace(",", "/").split("/")[0]
    ),
    "format:newline": lambda a: "It\nis\nso",
    "format:emoji": lambda a: "It is so \U0001f600. It is \U0001f600.",
    "format:line_indent": lambda a: "It\n is\n  so",
    "format:quote_unquote": lambda a: '"So" means thus',
    "format:list": lambda a: f"{a['sep']} it\n{a['sep']} is",
    "format:thesis": lambda a: "<i>It is so.</i> It is.",
    "format:sub-bullets": lambda a: "* it\n - is",
    "format:no_bullets_bullets": lambda a: "It is so. It was so.\n* it\n* is",
    "format:title_case": lambda a: "It Is So",
    "format:output_template": lambda a: "My Answer: so My Conclusion: so Future Outlook: so",
    "format:no_whitespace": lambda a: "so",
    "custom:multiples": lambda a: "14, 21, 28, 35, 42, 49",
    "custom:mcq_count_length": lambda a: "\n\n".join(_question(i) for i in range(1, 5)),
    "custom:reverse_newline": lambda a: "\n".join(["Zimbabwe"] * 52),
    "custom:word_reverse": lambda a: "eagle bald the is it",
    "custom:character_reverse": lambda a: "elgae dlab",
    "custom:sentence_alphabet": lambda a: " ".join(
        f"{letter.upper()}bc is so." for letter in ascii_lowercase
    ),
    "custom:european_capitals_sort": lambda a: ", ".join(CAPITALS),
    "custom:csv_city": lambda a: _table(("ID", "Country", "City", "Year", "Count"), "7", 7, ","),
    "custom:csv_special_character": lambda a: _table(
        ("ProductID", "Category", "Brand", "Price", "Stock"), "a-b", 14, ",", '"'
    ),
    "custom:csv_quotes": lambda a: _table(
        ("StudentID", "Subject", "Grade", "Semester", "Score"), "7", 3, "\t", '"'
    ),
    "custom:date_format_list": lambda a: "1796-04-12, 1815-06-18",
}

EXAMPLES: dict[str, Make] = {**_IFEVAL, **_IFBENCH}
"""An example of every kind, by its arguments."""


def propose_texts(instructions: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return texts of which one may follow all instructions."""
    single = [EXAMPLES[kind](arguments) for kind, arguments in instructions]
    if len(single) == 1:
        return single
    joined = [
        "\n".join(single),
        "\n".join(reversed(single)),
        "\n\n".join(sorted(single, key=len)),
        " ".join(single),
    ]
    texts = [*joined, *(f'"{text}"' for text in joined), *single]
    texts += [text.replace(",", "") for text in texts if "," in text]
    return [*texts, *(text.lower() for text in texts), *(text.upper() for text in texts)]
