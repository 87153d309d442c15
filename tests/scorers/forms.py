"""The table of forms in forms.yaml, and what our scorers read: `python -m tests.scorers.forms`.

A row is a short text of a public parser's test file with the value that a person reads in it and
the value that the file expects. `ours` is there where our value is not the person's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from serve_eval.schema import Response
from serve_eval.scorers import boxed, choice, code, numeric, yes_no
from serve_eval.tasks import videomme

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


if __name__ == "__main__":
    main()
