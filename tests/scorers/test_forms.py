"""Read the forms of forms.yaml with our scorers: `python -m tests.scorers.test_forms`.

A row is a short text of a public parser's test file with the value that a person reads in it and
the value that the file expects. `ours` is there where our value is not the person's.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.schema import Outcome, Response
from serve_eval.scorers import boxed, choice, code, numeric, yes_no
from serve_eval.scorers._blocks import find_blocks
from serve_eval.scorers._stated import find_stated
from serve_eval.scorers.numeric import find_last_number, find_stated_numbers, numbers_in
from serve_eval.tasks import videomme
from tests.scorers.test_offered import made

FILE = Path(__file__).with_name("forms.yaml")
LETTERS = "ABCD"

Value = str | float | None


class Form(NamedTuple):
    """A row of the table; `defined` has the values of extractors that others define."""

    file: str
    kind: str
    choices: str
    text: str
    person: Value
    theirs: Value
    ours: Value
    why: str | None
    defined: Mapping[str, object]


def load_forms():
    """Yield the rows of the table."""
    for source in yaml.safe_load(FILE.read_text("utf-8")):
        for row in source["rows"]:
            yield Form(
                file=f"{source['repository']} {source['path']}",
                kind=source["kind"],
                choices=source.get("choices", LETTERS),
                text=row["text"],
                person=row["person"],
                theirs=row["theirs"],
                ours=row.get("ours", row["person"]),
                why=row.get("why"),
                defined=row.get("defined", {}),
            )


def read(kind, text, choices=LETTERS):
    """Return what our own scorer reads in a text; None if it is unparsed."""
    response = Response(text=text, finish_reason="stop")
    if kind == "code":
        program = code.scorer().program
        made = program("pass", response)
        return None if made is None else made.code
    if kind == "number":
        answer = numeric.scorer().score(0, response).answer
        return None if answer is None else float(answer)
    if kind == "yes_no":
        return yes_no.scorer().score("yes", response).answer
    return _choice(choices).score(choices[0], response).answer


@cache
def _choice(choices):
    return choice.scorer(choices=tuple(choices))


def read_as_defined(kind, text):
    """Return what the extractors of lm-eval's and NVIDIA's tasks read in a text."""
    if kind == "number":
        return {
            "gsm8k strict-match": numeric.extract_strict(text),
            "gsm8k flexible-extract": numeric.extract_flexible(text),
            "aime": boxed.extract(text),
        }
    if kind == "letter":
        prefixes = (one for one in LETTERS if choice.prefix_match(text, one).value)
        return {
            "mmlu": next(prefixes, None),
            "gpqa": choice.answer_letter(text, "A").answer,
            "longbench_v2": choice.score_stated_letter(text, "A").answer,
            "videomme": videomme.first_letter(text, "A").answer,
        }
    return {}


def same(one, other):
    """Return True for equal values; numbers are equal if they differ by rounding only."""
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-12)
    return one == other


def main():
    """Print per kind how many rows are read as a person does, unparsed, and read otherwise."""
    counts = {}
    for form in load_forms():
        found = read(form.kind, form.text, form.choices)
        right = same(found, form.person)
        said = "as a person" if right else "unparsed" if found is None else "another value"
        counts.setdefault(form.kind, Counter())[said] += 1
    columns = ("as a person", "unparsed", "another value")
    print(f"{'kind':8} {'rows':>5} " + " ".join(f"{name:>14}" for name in columns))
    for kind, count in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        values = " ".join(f"{count[name]:>14}" for name in columns)
        print(f"{kind:8} {count.total():>5} {values}")


FORMS = list(load_forms())
PARSERS = (
    "huggingface/Math-Verify",
    "EleutherAI/lm-evaluation-harness",
    "modelscope/evalscope",
    "sgl-project/sgl-eval",
    "stanford-crfm/helm",
    "open-compass/opencompass",
)


def test_the_table_is_taken_from_tests_of_public_parsers():
    assert len(FORMS) >= 150
    assert {form.kind for form in FORMS} == {"letter", "number", "yes_no", "code"}
    places = {form.file for form in FORMS}
    assert all(
        re.fullmatch(r"[\w.-]+/[\w.-]+ \S*(?:test|spec|cases|examples)\S*", p) for p in places
    )
    assert all(any(place.startswith(parser) for place in places) for parser in PARSERS)
    assert len({(form.kind, form.file, form.text) for form in FORMS}) == len(FORMS)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.kind} {form.text[:40]!r}")
def test_a_form_is_read_as_a_person_reads_it_or_the_row_says_why(form):
    found = read(form.kind, form.text, form.choices)
    assert same(found, form.ours)
    assert form.why or (_agrees(found, form.theirs) and same(found, form.person))


@pytest.mark.parametrize("kind", ["letter", "number"])
def test_extractors_that_others_define_read_what_they_always_read(kind):
    rows = [form for form in FORMS if form.kind == kind and form.defined]
    assert len(rows) > 80
    for form in rows:
        assert read_as_defined(kind, form.text) == form.defined, form.text


def _agrees(found, theirs):
    """Return True if a value is the one that a file expects, which may have a unit."""
    if isinstance(theirs, str) and theirs.startswith("not "):
        other = theirs.removeprefix("not ")
        numbers = [*numbers_in(other), other]
        return found is None or not same(found, numbers[0])
    if isinstance(theirs, str) and isinstance(found, float):
        return same(found, numbers_in(theirs)[0])
    return same(found, theirs)


LATEX = (
    "$@$", "$$@$$", r"\(@\)", r"\[@\]", r"\text{@}", r"\textbf{@}", r"\mathrm{@}", r"\mathbf{@}",
    r"\boxed{@}", r"\fbox{@}", r"\boldsymbol{@}", r"\mbox{@}", r"\textit{@}", r"\emph{@}",
)  # fmt: skip
MARKDOWN = ("**@**", "*@*", "__@__", "_@_", "`@`", "<b>@</b>", "<i>@</i>", "<strong>@</strong>")
SENTENCES = (
    "@", "@.", "The answer is @.", "Answer: @", "**Answer:** @", "The final answer is: @",
    "### Answer\n@", "Some reasoning.\n\nFinal answer: @", "<answer>@</answer>", "ANSWER = @",
    "The correct answer is @", "answer: @\nI hope this helps.", "\u7b54\u6848\uff1a@",
)  # fmt: skip


def _wrap(wrappings, inner):
    for wrapping in wrappings:
        inner = wrapping.replace("@", inner)
    return inner


WRAPPINGS = st.lists(st.sampled_from(LATEX), max_size=4).flatmap(
    lambda inner: st.lists(st.sampled_from(MARKDOWN), max_size=2).map(lambda outer: inner + outer)
)


@settings(deadline=None, max_examples=80)
@given(
    wrappings=WRAPPINGS,
    sentence=st.sampled_from(SENTENCES),
    letter=st.sampled_from("ABCD"),
    form=st.sampled_from(["@", "(@)", "@)", "[@]", "@."]),
)
def test_a_letter_is_read_in_any_nesting_of_wrappings(wrappings, sentence, letter, form):
    text = sentence.replace("@", _wrap(wrappings, form.replace("@", letter)))
    assert read("letter", text) == letter, text


@settings(deadline=None, max_examples=60)
@given(
    wrappings=WRAPPINGS,
    sentence=st.sampled_from(SENTENCES),
    word=st.sampled_from(["yes", "no", "Yes", "NO", "True", "false"]),
)
def test_yes_and_no_are_read_in_any_nesting_of_wrappings(wrappings, sentence, word):
    text = sentence.replace("@", _wrap(wrappings, word))
    assert read("yes_no", text) == ("yes" if word.lower() in ("yes", "true") else "no"), text


NUMBERS = (
    ("1234.5", ["1234.5", "1,234.5", "1{,}234.5", r"1\,234.5", "1\u202f234.5", "1\u00a0234,5",
                "1.234,50", "1'234.5", "1.2345e3", r"1.2345\times10^{3}", "1.2345\u00d710\u00b3",
                r"1.2345 \cdot 10^3", r"\frac{2469}{2}", "2469/2", r"1234\frac{1}{2}",
                "1234\u00bd", "1234 1/2", "\uff11\uff12\uff13\uff14.5"]),
    ("-0.75", ["-0.75", "-.75", "\u22120.75", r"-\frac{3}{4}", r"-\dfrac34", "-3/4", "-\u00be",
               "-75e-2", r"-7.5\times 10^{-1}", r"\frac{-3}{4}"]),
    ("50", ["50", "50%", r"50\%", "$50", r"\$50", "50 \u20ac", "\u20ac50", "50 km",
            r"50\text{ cm}^2", r"50^\circ", "50 m/s\u00b2", "50.0", "\u0665\u0660"]),
    ("1000000", ["1000000", "1,000,000", "1 000 000", "1.000.000", "10^6", r"10^{6}", "10\u2076",
                 "1e6", r"1{,}000{,}000", r"1,\!000,\!000", "1_000_000", "10<sup>6</sup>"]),
)  # fmt: skip


@settings(deadline=None, max_examples=100)
@given(
    wrappings=WRAPPINGS,
    sentence=st.sampled_from(SENTENCES),
    number=st.sampled_from([(value, form) for value, forms in NUMBERS for form in forms]),
)
def test_a_number_is_read_in_any_form_and_any_nesting_of_wrappings(wrappings, sentence, number):
    value, form = number
    text = sentence.replace("@", _wrap(wrappings, form))
    assert same(read("number", text), float(value)), text


PIECES = st.sampled_from(
    [
        *"0123456789.,-+= %'()eE/$",
        "12",
        "1,234",
        "0,5",
        " 000",
        " is ",
        "\n",
        "\u2212",
        "x",
        "1.234",
    ]
)


@settings(deadline=None, max_examples=100)
@given(st.lists(PIECES, max_size=80).map("".join), st.integers(0, 200))
def test_the_end_of_a_text_is_read_as_the_whole_is(text, before):
    text = f"{'So we add 7 and 8. ' * before}{text}"
    numbers = find_stated_numbers(text)
    assert find_last_number(text) == (numbers[-1] if numbers else None)


ITEMS = ("(@) no", "@) no", "@. No", "@: no", "**@)** no", "[@] no", "- @: no", r"\textbf{@)} no",
         "Option @: no", "@ - no", "@", "(@)", r"\boxed{@}", r"$\text{@}$", "@ = no")  # fmt: skip
BETWEEN = (" ", "; ", ", ", "\n", "\n\n", " / ", " or ")
BEFORE = ("", "The choices are:\n", "Answer: ", "The answer choices are ", "Let me see. ")


@settings(deadline=None, max_examples=80)
@given(
    order=st.permutations("ABCD"),
    item=st.sampled_from(ITEMS),
    between=st.sampled_from(BETWEEN),
    before=st.sampled_from(BEFORE),
)
def test_a_list_of_all_choices_is_no_answer(order, item, between, before):
    text = before + between.join(item.replace("@", letter) for letter in order)
    assert read("letter", text) is None, text


@pytest.mark.parametrize("order", list(permutations(["yes", "no"])))
@pytest.mark.parametrize("between", [" or ", "/", ", ", " and ", "; ", "\n", " "])
@pytest.mark.parametrize("before", ["", "Answer: ", "The answer is ", "Is it "])
def test_yes_or_no_is_no_answer(order, between, before):
    assert read("yes_no", before + between.join(order)) is None


FORMS_LETTERS = {letter: letter for letter in "ABCDI"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(A) no; (B) no. The final answer is $\\boxed{C}$.", "C"),
        ("A) no B) no C) yes", None),
        ("The answer is A. ... no wait, the answer is D", "D"),
        ("The answer is A. Wait, actually it is B.", "B"),
        ("The answer is not B.", None),
        ("The answer isn't B", None),
        ("It cannot be A, so it must be C.", "C"),
        ("~~A~~ B", "B"),
        ("Is the answer B?", None),
        ("COVID-19, 5-3, A-level, C++ and C#", None),
        ("Choose from A\u2013D.", None),
        ("The answer is a decrease in pressure.", None),
        ("The answer is I think option B is correct", "B"),
        ("Let A = 5", None),
        ("\\boxed{B = 3}", None),
        ("\\boxed{A} or \\boxed{B}", None),
        ("A is correct. B is correct.", None),
        ("Answer A: no\nAnswer B: no\nAnswer C: no", None),
        ("B) Paris. A) is London.", "B"),
        ("The answer is (B). (A) is wrong, (C) is wrong.", "B"),
        ("\uff23", "C"),
        ("\u24b8", "C"),
        ("\U0001d402", "C"),
        ("&nbsp;C&nbsp;", "C"),
        ("\\\\boxed{C}", "C"),
        ("\\boxed C", "C"),
        ("\\boxed{C", "C"),
        ("The answer is \\boxed{\\text{Option C: } 5}", "C"),
    ],
)
def test_lists_denials_and_retractions(text, said):
    assert find_stated(text, FORMS_LETTERS) == said


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("The area is 15 m^2", [15.0]),
        ("pages 3\u20135", [3.0, 5.0]),
        ("12/25/2024", [12.0, 25.0, 2024.0]),
        ("from 7 101", [7.0, 101.0]),
        ("(0,5)", [0.0, 5.0]),
        ("H2O, CO_2 and x_{1} = 7", [7.0]),
        ("- 5 apples", [5.0]),
        ("3\\sqrt{2} or 2\\pi", []),
        ("$5 or $6", [5.0, 6.0]),
        ("US$5", [5.0]),
        ("2**10 = 2^{10}", [1024.0, 1024.0]),
        ("9.9\\times10^{999}", [float("inf")]),
    ],
)
def test_numbers_of_sentences_with_symbols(text, numbers):
    assert numbers_in(text) == numbers


CODE = "def f(x):\n    return x\n"


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{CODE}```\nIt prints:\n```\n4\n```",
        f"```python\n{CODE}```\nRun it:\n~~~bash\npython f.py\n~~~",
        f"Here it is: ```python3\n{CODE}```",
        f"```Python \n{CODE}```".replace("\n", "\r\n"),
        f"- so:\n  ```py\n  {CODE.replace(chr(10), chr(10) + '  ')}```",
        "1. ```python\n   def f(x):\n       return x\n   ```",
        "> ```python\n> def f(x):\n>     return x\n> ```",
        f"````markdown\n```python\n{CODE}```\n````",
        f"````\n{CODE}````",
        "```{.python}\n" + CODE,
        "```python\ndef f(x):\n    return x```\nThat is all.",
        f'<pre><code class="language-python">{CODE}</code></pre>',
        f"[PYTHON]\n{CODE}[/PYTHON]",
    ],
)
def test_code_is_read_in_all_the_forms_that_fences_come_in(text):
    assert read("code", text) == CODE


def test_exact_and_sets_and_json_read_the_same_markup():
    response = Response(text=r"$\boxed{\text{Paris}}$", finish_reason="stop")
    assert made("exact", {}).score("Paris", response).outcome is Outcome.CORRECT
    assert made("any_of", {}).score(["Paris", "Lutetia"], response).value == 1.0
    money = Response(text="$5 or $6", finish_reason="stop")
    assert made("exact", {}).score("5 or 6", money).outcome is Outcome.WRONG
    found = Response(text="Here: ```json\r\n[1, 2]\r\n```", finish_reason="stop")
    assert made("json_schema", {}).score({"equals": [1, 2]}, found).value == 1.0
    assert made("set", {"measure": "exact"}).score(["1", "2"], found).value == 1.0


LONG = 40_000
"""Length of a text. A pattern that retries from each character would need minutes for it."""
HOSTILE = (
    "\\boxed{", "\\boxed{A) ", "$", "$a", "{", "}", "\\frac{", "\\text{", "<a ", "*_", "~~", "&#",
    "1", "1,", "1 ", "1,234,", "1.234.", "1/", "^", "=", "answer ", "answer is A ", "Answer: A) ",
    "A, ", "A or ", "(", "not A ", "A\n", "I choose ", "\u221a", "```\n", "```a", "~~~\n", "> ",
    "<code>", "```md\n",
)  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_long_hostile_texts_are_read(piece):
    text = (piece * LONG)[:LONG]
    find_stated(text, FORMS_LETTERS)
    find_stated_numbers(text)
    find_blocks(text)


if __name__ == "__main__":
    main()
