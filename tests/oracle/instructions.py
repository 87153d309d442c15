"""Compare the verdicts of ifeval with lm-eval's, and those of ifbench with allenai/IFBench's.

Every instruction of both data sets is checked on answers to other prompts, recorded and changed.
NLTK=DIR names NLTK's data, in the layout of its downloader: archives, and the same unpacked.
IFBENCH=DIR names a checkout of IFBench.
"""

import importlib
import json
import logging
import os
import random
import sys

from serve_eval.schema import DataRoots
from serve_eval.tasks import _instructions_checks as instructions_checks
from serve_eval.tasks._ifbench_forms import FORMS
from serve_eval.tasks._ifbench_words import WORDS
from serve_eval.tasks._instructions_following import variants
from serve_eval.tasks.ifeval import IFEVAL
from tests.oracle.part import Compared, Skipped, checkout, require, shared

ANSWERS = 12
"""Answers that each prompt's instructions are checked on."""
DRAWN = ("1122", "1129")
"""Prompts of IFEval with a sign that is no letter: the original draws a letter at random."""
CHANGES = (
    str,
    str.upper,
    str.lower,
    str.title,
    lambda text: f'"{text}"',
    lambda text: text.replace(",", ""),
    lambda text: text.replace(" ", "\n"),
    lambda text: text.replace(". ", "? "),
    lambda text: text.replace(". ", " \U0001f600. "),
    lambda text: text[:60],
    lambda text: "\n".join(" " * i + line for i, line in enumerate(text.split("\n"))),
    lambda text: "".join(random.Random(text).choices("ab .,!?\n*-\"'()[]{}<>1\u65e5", k=40)),
)


def compare():
    """Compare both, the second one if its checkout is named.

    Raises Skipped without data, a package or a folder.
    """
    require("lm_eval", "nltk", "langdetect", "emoji", "syllapy", "immutabledict")
    folder = checkout("NLTK", "NLTK's data", "tokenizers/punkt_tab.zip")
    checkout("NLTK", "NLTK's data", "tokenizers/punkt_tab/english/abbrev_types.txt")
    os.environ["NLTK_DATA"] = str(folder)
    import langdetect
    import nltk

    nltk.data.path.insert(0, str(folder))
    nltk.download = lambda *names, **options: False  # both originals ask for data when imported
    logging.getLogger("lm_eval").setLevel(logging.CRITICAL)  # it names texts without a language
    langdetect.DetectorFactory.seed = instructions_checks.LANGUAGE_SEED
    english = instructions_checks.load(DataRoots(roots=(folder,)), *instructions_checks.FOLDERS)
    answers = [row["response"] for row in _rows("ifbench", "sample_output.jsonl")]
    from lm_eval.tasks.ifeval import utils

    result = Compared(what=f"verdicts of ifeval by lm-eval's, not of prompts {' and '.join(DRAWN)}")
    rows = [row for row in _rows("ifeval", "input_data.jsonl") if str(row["key"]) not in DRAWN]
    _check(result, rows, answers, IFEVAL, english, utils, lambda said: said)
    try:
        place = checkout("IFBENCH", "allenai/IFBench", "evaluation_lib.py")
    except Skipped as skipped:
        result.notes.append(f"ifbench: skipped: {skipped}")
        return [result]
    sys.path.insert(0, str(place))
    theirs = importlib.import_module("evaluation_lib")
    other = Compared(what="verdicts of ifbench by IFBench's own")
    rows = _rows("ifbench", "IFBench_test.jsonl")
    _check(other, rows, answers, {**WORDS, **FORMS}, english, theirs, _Anything)
    return [result, other]


class _Anything(dict[str, str]):
    """The same answer to every prompt, as IFBench looks answers up."""

    def __init__(self, text):
        self._text = text

    def __contains__(self, prompt):
        return True

    def __getitem__(self, prompt):
        return self._text


def _check(
    result,
    rows,
    answers,
    checks,
    english,
    theirs,
    as_answer,
):
    """Add the verdicts at both levels on all instructions of the rows.

    `as_answer` turns a text into what the functions of the original take.
    """
    rng = random.Random(57)
    for row in rows:
        kinds = row["instruction_id_list"]
        kwargs = [
            {name: one for name, one in some.items() if one is not None} for some in row["kwargs"]
        ]
        asked = theirs.InputExample(
            key=row["key"], instruction_id_list=kinds, prompt=row["prompt"], kwargs=kwargs
        )
        for _ in range(ANSWERS):
            text = rng.choice(CHANGES)(rng.choice(answers))
            for level, said in (("strict", [text]), ("loose", variants(text))):
                judge = getattr(theirs, f"test_instruction_following_{level}")
                verdicts = judge(asked, as_answer(text)).follow_instruction_list
                for kind, arguments, verdict in zip(kinds, kwargs, verdicts, strict=True):
                    ours = any(
                        one.strip() and checks[kind].follows(one, arguments, english)
                        for one in said
                    )
                    result.add(f"{row['key']} {kind} {level} {text[:60]!r}", ours, verdict)


def _rows(folder, name):
    file = shared(folder) / name
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
