"""Compare GSM8K with lm-eval's own task: all prompt forms, and the filters with the metric."""

from __future__ import annotations

import io
import json
import random
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from serve_eval.datasets.generated import write_gsm8k
from serve_eval.schema import DataRoots, Message, Response, Task
from serve_eval.scorers.numeric import STRICT
from serve_eval.tasks import gsm8k
from serve_eval.tasks._gsm8k import LAST_LINE, TEST_ROWS, gsm8k_inferencex, score
from tests.oracle._suite_flow import Ask, built, prompts
from tests.oracle.part import SHARED, Compared, require

NUMBERS = (
    "0", "7", "18", "-3", "1,234", "1234567", "$5", "12.50", "3.", ".5", "1e3", "٣", "½", "１２", "--4", "$", "-",  # noqa: E501
)  # fmt: skip
MARKS = (
    "#### ", "#### ", "#### ", "\n#### ", "\n#### ", "####", "### ", "#### $", "#### -", "The answer is ",  # noqa: E501
    "\nQuestion: ", "€", "\u00a0", "\n\n",
)  # fmt: skip
VARIANTS = 8
"""Number of variants per answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to the question of one row of the test set."""

    row: int
    text: str


def recorded(count):
    """Return the recorded answers to the `count` questions of the real test set."""
    found = []
    for file in sorted((SHARED / "recorded").glob("gsm8k_*Llama*.jsonl")):
        found += [
            Answer(line["idx"], line["output"])
            for line in map(json.loads, file.read_text().splitlines())
        ]
    solutions = (
        (SHARED / "recorded/gsm8k_openai_example_model_solutions.jsonl").read_text().splitlines()
    )
    for row, line in enumerate(map(json.loads, solutions[:count])):
        found += [Answer(row, said["solution"]) for said in line.values() if isinstance(said, dict)]
    for file in sorted((SHARED / "recorded/lmeval_logs").glob("samples_*.jsonl")):
        lines = map(json.loads, file.read_text().splitlines())
        found += [Answer(line["doc_id"], line["resps"][0][0]) for line in lines]
    return found


def made_up(golds):
    """Return answers to questions of which only the numbers are known."""
    forms = (
        "So it is {0}.\n#### {0}",
        "#### {0}.",
        "It is ${0},000",
        "{0}",
        "#### -{0}",
        "nothing",
        "",
        "{0} or 1",
    )
    return [Answer(row, form.format(gold)) for row, gold in enumerate(golds) for form in forms]


def variants(answers, golds, most):
    """Yield seeded variants of the answers in turn, at most `most` in all and VARIANTS of each."""
    rng = random.Random("gsm8k")
    for answer in islice(cycle(answers), min(most, VARIANTS * len(answers))):
        yield Answer(answer.row, rng.choice(CHANGES)(answer.text, golds[answer.row], rng))


def _cut(text, _, rng):
    return text[: rng.randint(0, len(text))]


def _marked(text, gold, rng):
    return text + rng.choice(MARKS) + rng.choice((gold, gold, *NUMBERS))


def _marked_first(text, gold, rng):
    return (
        rng.choice(MARKS) + rng.choice((gold, *NUMBERS)) + rng.choice(("", ".", ",", "\n")) + text
    )


def _marked_twice(text, gold, rng):
    one, other = rng.sample((f"#### {gold}", f"#### {rng.choice(NUMBERS)}"), 2)
    return f"{one}{rng.choice((' ', '.', chr(10)))}{_cut(text, gold, rng)}{other}"


def _put_in(text, gold, rng):
    here = rng.randint(0, len(text))
    return text[:here] + rng.choice(MARKS) + rng.choice((gold, *NUMBERS)) + text[here:]


def _ended(text, _, rng):
    return text.rstrip() + rng.choice(
        (".", "..", ",", "$", "%", ".\n", ".\n\n", " dollars.", "\\$", "!", ".00", " .")
    )


def _grouped(text, gold, rng):
    grouped = (
        f"{int(gold.replace(',', '')):,}" if gold.replace(",", "").lstrip("-").isdecimal() else gold
    )
    return f"{_cut(text, gold, rng)}{rng.choice(MARKS)}{rng.choice(('', '$'))}{grouped}{rng.choice(('', '.', ',', '.0'))}"  # noqa: E501


def _without(text, _, rng):
    return text.replace(rng.choice("#$,. 0123456789\n"), "")


def _shuffled(text, gold, rng):
    words = [*text.split(" "), gold, f"#### {gold}"]
    return " ".join(rng.sample(words, len(words)))


CHANGES = (
    *(_cut, _marked, _marked_first, _marked_twice, _put_in, _ended, _grouped, _without, _shuffled),
)


OWN = "gsm8k/gsm8k.yaml"
ANSWERS = 61_355
"""Number of recorded answers and variants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A way to ask, in the options of lm-eval and in ours."""

    name: str
    ask: Mapping[str, Any]
    options: Mapping[str, Any]
    make: Callable[..., Task] = gsm8k.task


CHAT = {"apply_chat_template": True}
ASKED = f"Question: {{{{question}}}}\n{LAST_LINE}Answer:"
"""The prompt of gsm8k_inferencex, from the suite's file of the task."""
FORMS = (
    Form(name="completions", ask={}, options={}),
    Form(
        name="chat in a single turn, one draw",
        ask={"chat": True},
        options={**CHAT, "fewshot_sampler": "0.4.10"},
    ),
    Form(
        name="chat in a single turn, two draws (lm-eval's sampler called twice)",
        ask={"chat": True, "drawn_twice": True},
        options=CHAT,
    ),
    Form(
        name="chat in turns",
        ask={"chat": True, "multiturn": True},
        options={**CHAT, "fewshot_as_multiturn": True},
    ),
    Form(
        name="with the line of gsm8k_inferencex, chat in turns",
        ask={"chat": True, "multiturn": True, "changed": {"doc_to_text": ASKED}},
        options={},
        make=gsm8k_inferencex,
    ),
)
LAST = "strict-match of gsm8k_inferencex"
LAST_MATCH = {"regex_pattern": r"#### (\-?[0-9\.\,]+)", "group_select": -1}
"""The filter of the same name in the suite's file of the task."""


def compare():
    """Compare prompts and answers.

    The questions are the real ones, or generated ones if those are missing.
    """
    require("lm_eval")
    with tempfile.TemporaryDirectory() as folder:
        real = (SHARED / "gsm8k").is_dir()
        root = SHARED / "gsm8k" if real else Path(folder)
        if not real:
            write_gsm8k(root)
        files = {split: str(root / f"{split}.jsonl") for split in ("train", "test")}
        answered = _answers(files, root, real=real)
        told = [
            _prompts(form, theirs, root) for form, theirs in zip(FORMS, _theirs(files), strict=True)
        ]
    if not real:
        answered.notes.append(f"generated questions and answers: {SHARED / 'gsm8k'} is not there")
    return [answered, *told]


def _theirs(files):
    return prompts([Ask(config=OWN, files=files, **form.ask) for form in FORMS])


def _prompts(form, theirs, root):
    compared = Compared(what=f"prompts of gsm8k, {form.name}, against lm-eval")
    samples = form.make(**form.options).load(DataRoots(roots=(root,)), TEST_ROWS).samples
    if len(theirs) != len(samples):
        compared.add("questions", len(samples), len(theirs))
    for sample, wanted in zip(samples, theirs, strict=False):
        compared.add(sample.id, _plain(sample), wanted)
    return compared


def _plain(sample):
    if isinstance(sample.prompt, str):
        return sample.prompt
    return [[turn.role, turn.text] for turn in sample.prompt if isinstance(turn, Message)]


def _answers(files, root, *, real):
    """Compare the filters on every answer."""
    made = gsm8k.task()
    samples = {s.id: s for s in made.load(DataRoots(roots=(root,)), TEST_ROWS).samples}
    golds = [samples[f"test-{row}"].target.rpartition("#### ")[2] for row in range(len(samples))]
    given = recorded(len(golds)) if real else made_up(golds)
    asked = [*given, *variants(given, golds, ANSWERS - len(given))]
    compared = Compared(
        what=(
            f"filters of gsm8k x answers ({len(given)} given, the others variants), against lm-eval"
        )
    )
    right = {}
    for name, figures in _judged(files, asked).items():
        for number, (answer, wanted) in enumerate(zip(asked, figures, strict=True)):
            response = Response(text=answer.text, finish_reason="stop")
            sample = samples[f"test-{answer.row}"]
            parts = (score if name == LAST else made.score)(sample, response).parts
            ours = parts[STRICT if name == LAST else name]
            right[name] = right.get(name, 0) + bool(wanted)
            compared.add(
                f"{name} of answer {number} to {answer.row}, {answer.text[-60:]!r}", ours, wanted
            )
    compared.notes.append(", ".join(f"{count} right by {name}" for name, count in right.items()))
    return compared


def _judged(files, asked):
    """Return lm-eval's score of every answer by filter, from its filters, documents and metric."""
    from lm_eval.api.instance import Instance
    from lm_eval.filters import build_filter_ensemble

    with tempfile.TemporaryDirectory() as cache, redirect_stderr(io.StringIO()):  # progress bars
        theirs = built(OWN, files, {}, cache_dir=cache)
        documents = list(theirs.test_docs())
    figures = {}
    last = build_filter_ensemble(LAST, [("regex", LAST_MATCH), ("take_first", None)])
    for ensemble in (*theirs._filters, last):
        instances = [
            Instance(
                request_type="generate_until",
                doc=documents[one.row],
                arguments=("", {}),
                idx=0,
                resps=[one.text],
            )
            for one in asked
        ]
        ensemble.apply(instances)
        figures[ensemble.name] = [
            float(
                theirs.process_results(one.doc, [one.filtered_resps[ensemble.name]])["exact_match"]
            )
            for one in instances
        ]
    return figures
