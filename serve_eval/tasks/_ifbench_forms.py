"""Check IFBench's instructions on sentences and forms: groups sentence, format and custom.

Each function gives the verdict of allenai/IFBench (Apache-2.0, db69a6f0), also where that verdict
surprises, as its docstring says. Some answers end the original with an error: they do not follow.
"""

from __future__ import annotations

import csv
import io
import re
import string
from collections.abc import Sequence
from itertools import pairwise

from serve_eval.tasks._instructions_checks import (
    PUNCTUATION,
    Arguments,
    Checks,
    English,
    is_emoji,
    plain_letters,
    trim,
    without_punctuation,
)

FORMS = Checks()

_PAIRS = {")": "(", "]": "[", "}": "{"}
_DEEPEST = 5
_EXACT_OPTIONS = re.compile(r"\W*[aA]\W*[bB]\W*[cC]\W*")
_CAPITAL_LIST = """Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk
Dublin Berlin Amsterdam Warsaw London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest
Vaduz Chisinau Bern Ljubljana Zagreb"""
CAPITALS = _CAPITAL_LIST.split()
_AFRICAN_COUNTRIES = 52
_DAYS = dict(zip(range(1, 13), (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))
_NAPOLEON = range(1769, 1822)


@FORMS.of("sentence:alliteration_increment")
def _increases_alliteration(text: str, args: Arguments, english: English) -> bool:
    """Count the words of a sentence whose first letter is that of a word next to them."""
    before = -1
    for sentence in english.sentences(text):
        words = [one for word in sentence.lower().split() if (one := word.lstrip(PUNCTUATION))]
        equal = [a[0] == b[0] for a, b in pairwise(words)]
        count = sum(a or b for a, b in pairwise([False, *equal, False]))
        if count <= before:
            return False
        before = count
    return True


@FORMS.of("sentence:keyword", "word", "N")
def _has_keyword_in_sentence(text: str, args: Arguments, english: English) -> bool:
    sentences, place = english.sentences(text), int(args["N"])
    pattern = rf"\b{re.escape(args['word'])}\b"
    return len(sentences) >= place and bool(re.search(pattern, sentences[place - 1], re.IGNORECASE))


@FORMS.of("sentence:increment", "small_n")
def _increases_lengths(text: str, args: Arguments, english: English) -> bool:
    counts = [len(without_punctuation(one).split()) for one in english.sentences(text)]
    return all(b - a == int(args["small_n"]) for a, b in pairwise(counts))


@FORMS.of("format:parentheses")
def _nests_brackets(text: str, args: Arguments, english: English) -> bool:
    """Require that a bracket closes after five were open; a wrong one starts again."""
    open_ones: list[str] = []
    deepest = 0
    for character in text:
        if character in _PAIRS.values():
            open_ones.append(character)
            deepest = max(deepest, len(open_ones))
        elif character in _PAIRS:
            if open_ones[-1:] != [_PAIRS[character]]:
                open_ones, deepest = [], 0
            elif deepest >= _DEEPEST:
                return True
            else:
                open_ones.pop()
    return False


@FORMS.of("format:quotes")
def _nests_quotes(text: str, args: Arguments, english: English) -> bool:
    """Require that three levels close. An apostrophe counts as a quotation mark."""
    open_ones: list[str] = []
    deepest = 0
    for character in text:
        if open_ones[-1:] == [character]:
            open_ones.pop()
            if deepest - len(open_ones) >= 3:
                return True
        elif character in ('"', "'"):
            open_ones.append(character)
            deepest = max(deepest, len(open_ones))
    return False


@FORMS.of("format:options", "options")
def _is_option(text: str, args: Arguments, english: English) -> bool:
    """Compare without marks at the ends and without case, unless the options are letters."""
    said = args["options"]
    separator = next((one for one in ("/", "or") if one in said), ",")
    options = [option.strip() for option in said.split(separator)]
    if _EXACT_OPTIONS.match(said):
        return text in options
    return trim(text).lower() in [trim(option).lower() for option in options]


@FORMS.of("format:newline")
def _has_word_per_line(text: str, args: Arguments, english: English) -> bool:
    text = without_punctuation(text).strip()
    return len([line for line in text.split("\n") if line]) == len(text.split())


@FORMS.of("format:emoji")
def _ends_in_emoji(text: str, args: Arguments, english: English) -> bool:
    """Accept an emoji as the last sign but one, or as the first of the next sentence."""
    sentences = [without_punctuation(one).strip() for one in english.sentences(text)]
    for place, sentence in enumerate(sentences):
        if not sentence:
            return False
        if any(is_emoji(character) for character in sentence[-2:]):
            continue
        following = sentences[place + 1 : place + 2]
        if not any(following) or not is_emoji(following[0][0]):
            return False
    return True


@FORMS.of("format:line_indent")
def _indents_lines(text: str, args: Arguments, english: English) -> bool:
    lines = text.split("\n")
    place = 0
    while place < len(lines):
        if not lines[place].strip():
            # The original removes from the list that it walks: of two blank lines one stays.
            lines.remove(lines[place])
        place += 1
    indents = [len(line) - len(line.lstrip(" ")) for line in lines]
    return all(a < b for a, b in pairwise(indents))


@FORMS.of("format:quote_unquote")
def _explains_quotes(text: str, args: Arguments, english: English) -> bool:
    """Refuse two marks in a row, and a mark that ends the text. Only straight marks count."""
    text = "".join(text.replace("'\"'", "").split())
    digits = string.digits + PUNCTUATION.replace('"', "")
    return '""' not in text and not text.strip(digits).endswith('"')


@FORMS.of("format:list", "sep")
def _has_marks_of_list(text: str, args: Arguments, english: English) -> bool:
    return text.count(args["sep"]) >= 2


@FORMS.of("format:thesis")
def _has_thesis(text: str, args: Arguments, english: English) -> bool:
    """Look at the first text in italics, and for any text after it."""
    start = next((i for tag in ("<i>", "<em>") if (i := text.find(tag)) >= 0), None)
    if start is None:
        return False
    text = text[start:]
    end = next((i for tag in ("</i>", "</em>") if (i := text.find(tag)) >= 0), None)
    return end is not None and bool(text[3:end].strip()) and bool(text[end + 4 :].strip())


@FORMS.of("format:sub-bullets")
def _has_sub_bullets(text: str, args: Arguments, english: English) -> bool:
    """Require a dash after each star, anywhere. A text without a star follows."""
    return all("-" in bullet for bullet in text.split("*")[1:])


@FORMS.of("format:no_bullets_bullets")
def _has_sentences_then_bullets(text: str, args: Arguments, english: English) -> bool:
    """Require nothing after the bullets. A blank line ends the sentences."""
    sentences = bullets = 0
    in_text = True
    for line in map(str.strip, text.split("\n")):
        if line.startswith("*"):
            in_text = False
            if sentences < 2:
                return False
            bullets += 1
        elif in_text:
            found = len(english.sentences(line))
            sentences += found
            in_text = found > 0
        else:
            return False
    return bullets >= 2


@FORMS.of("format:title_case")
def _is_in_title_case(text: str, args: Arguments, english: English) -> bool:
    """Refuse a word that starts in lowercase, unless its other letters are of both cases."""
    for word in english.words(text):
        rest = word[1:]
        if (
            word[:1].isalpha()
            and word[0].islower()
            and (not rest or rest.islower() or rest.isupper())
        ):
            return False
    return True


@FORMS.of("format:output_template")
def _fills_template(text: str, args: Arguments, english: English) -> bool:
    return all(part in text for part in ("My Answer:", "My Conclusion:", "Future Outlook:"))


@FORMS.of("format:no_whitespace")
def _has_no_blanks(text: str, args: Arguments, english: English) -> bool:
    return not any(map(str.isspace, text))


@FORMS.of("custom:multiples")
def _counts_in_sevens(text: str, args: Arguments, english: English) -> bool:
    return re.findall(r"\d+", text) == [str(n) for n in range(14, 51, 7)]


@FORMS.of("custom:mcq_count_length")
def _asks_four_questions(text: str, args: Arguments, english: English) -> bool:
    if not text.startswith("Question"):
        return False
    pieces = re.split(r"\n*(?:Question \d+[\.|\):;]?\s*)", text)
    questions = [piece.strip().split("\n") for piece in pieces if piece.strip()]
    lengths = []
    for lines in questions:
        options = [
            i for i, one in enumerate(lines) if re.match(r"[A-Ea-e][\.|\)]\s*\w+", one.strip())
        ]
        if len(options) != 5:
            return False
        asked = " ".join(line.strip() for line in lines[: options[0]])
        lengths.append(len(asked.strip()))
    return len(lengths) == 4 and all(a < b for a, b in pairwise(lengths))


@FORMS.of("custom:reverse_newline")
def _lists_backwards(text: str, args: Arguments, english: English) -> bool:
    lines = [one for line in text.split("\n") if (one := trim(line))]
    start = next((i for i, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    found = [plain_letters(line) for line in lines[start:]]
    return len(found) >= _AFRICAN_COUNTRIES and found == sorted(found, reverse=True)


@FORMS.of("custom:word_reverse")
def _reverses_words(text: str, args: Arguments, english: English) -> bool:
    turned = " ".join(without_punctuation(text.lower().strip()).split()[::-1])
    return "bald eagle" in turned and turned in english.sentences(turned)


@FORMS.of("custom:character_reverse")
def _reverses_letters(text: str, args: Arguments, english: English) -> bool:
    return "elgae dlab" in text.lower()


@FORMS.of("custom:sentence_alphabet")
def _starts_by_alphabet(text: str, args: Arguments, english: English) -> bool:
    firsts = [one.lstrip().lower()[:1] for one in english.sentences(text)]
    return firsts == list(string.ascii_lowercase)


@FORMS.of("custom:european_capitals_sort")
def _sorts_capitals(text: str, args: Arguments, english: English) -> bool:
    return [one.strip() for one in plain_letters(text).split(",") if one.strip()] == CAPITALS


@FORMS.of("custom:csv_city")
def _is_table_of_cities(text: str, args: Arguments, english: English) -> bool:
    rows = _read_table(text, ",")
    header = ["ID", "Country", "City", "Year", "Count"]
    return len(rows) == 8 and rows[0] == header and all(len(row) == 5 for row in rows[1:])


@FORMS.of("custom:csv_special_character")
def _is_table_of_products(text: str, args: Arguments, english: English) -> bool:
    """Require five fields in the rows up to the first with a quoted special character."""
    names = ("ProductID", "Category", "Brand", "Price", "Stock")
    rows = _read_quoted(text, ",")
    if not _has_header(text, names, r",[ \t]*") or len(rows) != 15:
        return False
    for row in rows[1:]:
        if len(row) != 5:
            return False
        if any(re.match(r'".*[^\d\w\s].*"', field) for field in row):
            return True
    return False


@FORMS.of("custom:csv_quotes")
def _is_quoted_table(text: str, args: Arguments, english: English) -> bool:
    names = ("StudentID", "Subject", "Grade", "Semester", "Score")
    rows = _read_quoted(text, "\t")
    return (
        _has_header(text, names, r"\t *")
        and len(rows) == 4
        and all(len(row) == 5 for row in rows)
        and all(one.strip()[:1] == one.strip()[-1:] == '"' for row in rows for one in row)
    )


def _has_header(text: str, names: Sequence[str], separator: str) -> bool:
    pattern = separator.join(f'({name}|"{name}")' for name in names)
    return re.fullmatch(pattern, text.split("\n")[0].strip()) is not None


def _read_quoted(text: str, delimiter: str) -> list[list[str]]:
    """Return the fields of a table with their quotation marks."""
    return _read_table(text.replace('"', '"""'), delimiter)


def _read_table(text: str, delimiter: str) -> list[list[str]]:
    """Return the fields of a table, none if it cannot be read."""
    try:
        return list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error:
        return []


@FORMS.of("custom:date_format_list")
def _lists_dates(text: str, args: Arguments, english: English) -> bool:
    """Accept day 0 and any day of month 0."""
    for one in text.strip().split(","):
        date = re.match(r"(\d{4})-(\d{2})-(\d{2})$", one.strip())
        if date is None:
            return False
        year, month, day = map(int, date.groups())
        if year not in _NAPOLEON or month > 12 or day > _DAYS.get(month, 99):
            return False
    return True
