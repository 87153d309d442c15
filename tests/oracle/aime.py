"""Compare AIME, GPQA and MMMU with lm-eval's tasks, and MMLU with TensorRT-LLM's own evaluator.

AIME's problems are real or made-up, the answers made-up. GPQA's prompts are those under
`suite_exact`; lm-eval runs as in TensorRT-LLM's suite, with an empty cache. The environment
variable TRTLLM names a checkout of TensorRT-LLM.

Our reading of MMMU's answers is compared with lm-eval's, on made-up questions and answers.

If lm-eval cannot read an answer, it guesses a letter at random; ours scores it as wrong. These
answers are counted separately.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import random
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

from serve_eval.datasets.generated import write_mmlu
from serve_eval.schema import DataRoots, Message, Outcome, Response
from serve_eval.scorers import _mmmu
from serve_eval.scorers.boxed import STRICT
from serve_eval.tasks.aime import ROWS, task
from serve_eval.tasks.gpqa import COLUMNS, INSTRUCTION, LETTERS, Subset
from serve_eval.tasks.gpqa import ROWS as GPQA_ROWS
from serve_eval.tasks.gpqa import task as task_gpqa
from serve_eval.tasks.mmlu import SUBJECTS
from serve_eval.tasks.mmlu import task as task_mmlu
from tests.oracle._suite_flow import Ask, prompts
from tests.oracle._suite_mmlu import NUM_SAMPLES
from tests.oracle.part import SHARED, Compared, checkout, require, run

FILES = {
    2024: ("test2024.jsonl",),
    2025: ("test2025-I.jsonl", "test2025-II.jsonl"),
}
FORMS = (
    "{0}", " {0}\n", "{0}.", "The answer is {0}", "The answer is ${0}$.", "$n = {0}$", "$1$ or ${0}$", "$${0}$$",  # noqa: E501
    "\\boxed{{{0}}}", "So \\boxed{{{0}}}.", "\\boxed{{ {0} }}", "\\boxed {0}", "\\boxed {0}$ it is", "\\boxed{0}",  # noqa: E501
    "\\boxed{{1}} then \\boxed{{{0}}}", "\\boxed{{{0}}} then \\boxed{{1}}", "\\boxed{{{0}", "\\boxed{{{{{0}}}}}",  # noqa: E501
    "\\boxed{{0{0}}}", "\\boxed{{00{0}}}", "\\boxed{{{0}.0}}", "\\boxed{{{0}.}}", "\\boxed{{-{0}}}", "\\boxed{{+{0}}}",  # noqa: E501
    "\\boxed{{x={0}}}", "\\boxed{{xyz={0}}}", "\\boxed{{x = {0} = y}}", "\\boxed{{{0}^\\circ}}", "\\boxed{{{0}\\%}}",  # noqa: E501
    "\\boxed{{{0}^{{\\circ}}}}", "\\boxed{{\\${0}}}", "\\boxed{{{0}\\text{{ cm}}}}", "\\boxed{{{0}\\text{{cm}}}}",  # noqa: E501
    "\\boxed{{{0}\\text{{ a}}\\text{{ b}}}}", "\\boxed{{\\left{0}\\right}}", "\\boxed{{\\!{0}\\!}}", "\\fbox{{{0}}}",  # noqa: E501
    ".={0}", "..={0}",
    "\\boxed{{\\\\!{0}}}", "\\boxed{{\\frac{{{0}}}{{1}}}}", "\\boxed{{{0}/1}}", "\\boxed{{\\sqrt{{{0}}}}}", "{0}\\frac",  # noqa: E501
    "\\boxed{{\\text{{{0}}}}}", "\\boxed{{\\mathbf{{{0}}}}}", "\\[ {0} \\]", "**{0}**", "\\boxed{{{0},000}}", "no",  # noqa: E501
    "<think>\\boxed{{1}}</think>\\boxed{{{0}}}", "\\boxed{{{0}}} $x$ and $y$", "$ {0}", "{0} $", "", "\\boxed{{}}",  # noqa: E501
)  # fmt: skip
"""Forms of an answer."""
PIECES = (
    "\\boxed{", "\\boxed{{0}}", "\\boxed ", "\\boxed", "\\fbox{", "\\left", "\\right", "\\left(", "\\right)", "^\\circ",  # noqa: E501
    "^{\\circ}", "\\text{ ", "\\text{", "k=", "n = ", "=", "$", "$", "}", "}", "{", "{0}", "{0}", "{0}", "0{0}", "-{0}",  # noqa: E501
    "\\%", "%", "\\!", "\\\\", "\\\\!", "\\$", ",", ".", " .", "{.", " ", "\n", "\\frac", "\\frac12", "tfrac", "\\sqrt",  # noqa: E501
    "/", "1", "\\dfrac{1}{2}", "\\mathrm{", "is", "٣", "\x00",
)  # fmt: skip
DRAWN = 1500
"""Number of made-up answers of each problem, joined from random pieces."""


def compare():
    """Compare both years, on the real problems, or on made-up ones if those are missing."""
    with tempfile.TemporaryDirectory() as folder:
        real = (SHARED / "aime").is_dir()
        root = SHARED if real else Path(folder)
        if not real:
            _write(root / "aime")
        years = {
            year: task(year=year).load(DataRoots(roots=(root,)), ROWS).samples for year in FILES
        }
        theirs = prompts([_ask(year, root / "aime", Path(folder)) for year in FILES])
    asked = Compared(what="prompts of aime, against lm-eval")
    for (year, samples), wanted in zip(years.items(), theirs, strict=True):
        asked.add(f"{year}: problems", len(samples), len(wanted))
        for sample, text in zip(samples, wanted, strict=False):
            asked.add(sample.id, _plain(sample), text)
    if not real:
        asked.notes.append(f"made-up problems: {SHARED / 'aime'} is not there")
    return [asked, _scores(years)]


def _scores(years):
    theirs = importlib.import_module("lm_eval.tasks.aime.utils")
    rng, right = random.Random("aime"), 0
    compared = Compared(what="scores of aime x answers, against lm-eval's process_results")
    for year, samples in years.items():
        ours = task(year=year)
        for sample in samples:
            for text in _answers(sample.target, rng):
                wanted = theirs.process_results({"answer": sample.target}, [text])["exact_match"]
                score = ours.score(sample, Response(text=text, finish_reason="stop"))
                right += wanted
                compared.add(
                    f"{sample.id} {text!r}", (score.value, score.parts[STRICT]), (wanted, wanted)
                )
    compared.notes.append(f"{right} right")
    return compared


def _answers(gold, rng):
    """Yield right and wrong numbers in every form, and texts of random pieces."""
    for number in (gold, str(int(gold) + 1), gold[::-1], gold[:-1]):
        yield from (form.format(number) for form in FORMS)
    for _ in range(DRAWN):
        yield "".join(rng.choices(PIECES, k=rng.randint(1, 8))).replace("{0}", gold)


def _ask(year, root, folder):
    """Return how lm-eval asks a year.

    The problems are in one file, under the task's names.
    """
    rows = [
        json.loads(line) for name in FILES[year] for line in (root / name).read_text().splitlines()
    ]
    kept = [{"problem": row["problem"], "answer": row["answer"]} for row in rows]
    if year == 2024:
        kept = [{name.capitalize(): text for name, text in row.items()} for row in kept]
    split, file = "train" if year == 2024 else "test", folder / f"{year}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in kept))
    return Ask(config=f"aime/aime{year % 100}.yaml", files={split: str(file)})


def _plain(sample):
    (turn,) = sample.prompt
    return turn.text if isinstance(turn, Message) else turn


def _write(folder):
    """Write made-up problems in the layout of the real ones."""
    rng = random.Random("aime problems")
    folder.mkdir()
    for names in FILES.values():
        for name in names:
            count = ROWS // len(names)
            rows = [
                {"problem": f"Find ${i}+x$ for $x={i}$.", "answer": f"{rng.randrange(1000)}"}
                for i in range(count)
            ]
            (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


CONFIG = {
    "task": "gpqa_made",
    "output_type": "generate_until",
    "training_split": "train",
    "validation_split": "train",
    "doc_to_text": (
        f"{INSTRUCTION}\n{{{{Question}}}}"
        + "".join(f"\n{letter}) {{{{choices[{i}]}}}}" for i, letter in enumerate(LETTERS))
    ),
    "doc_to_target": "letter",
    "num_fewshot": 0,
    "generation_kwargs": {"until": ["</s>"], "do_sample": False, "temperature": 0.0},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
GPQA_PIECES = (
    "the",
    "mass",
    "of a",
    "$x_1$",
    "kaon",
    "3.5",
    "eV",
    "é",
    "–",
    "(A)",
    '"quoted"',
    "a, b",
    "\n",
    "  ",
)


def compare_gpqa():
    """Compare the prompts of every subset, on made-up rows of the same number."""
    subsets = get_args(Subset)
    with tempfile.TemporaryDirectory() as folder:
        files = {subset: _write_gpqa(Path(folder), subset) for subset in subsets}
        theirs = prompts(
            [Ask(config=CONFIG, files={"train": str(files[subset])}) for subset in subsets]
        )
        compared = Compared(
            what="prompts of gpqa under suite_exact, against lm-eval with an empty cache"
        )
        agreeing = 0
        for subset, asked in zip(subsets, theirs, strict=True):
            roots = DataRoots(roots=(Path(folder),))
            ours, usual = (
                task_gpqa(subset=subset, suite_exact=e).load(roots, GPQA_ROWS[subset]).samples
                for e in (True, False)
            )
            compared.add(f"{subset}: rows", len(ours), len(asked))
            for sample, wanted in zip(ours, asked, strict=False):
                compared.add(sample.id, sample.prompt, wanted)
            agreeing += sum(
                sample.prompt == wanted for sample, wanted in zip(usual, asked, strict=False)
            )
    compared.notes.append(
        f"without suite_exact (choice_seed 0) {agreeing} of {sum(GPQA_ROWS.values())} prompts"
        " are the same"
    )
    return [compared]


def _write_gpqa(folder, subset):
    """Write as many made-up rows as the subset has."""
    rng, text = random.Random(f"gpqa {subset}"), io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    for i in range(GPQA_ROWS[subset]):
        drawn = [" ".join(rng.choices(GPQA_PIECES, k=rng.randint(1, 6))) for _ in COLUMNS]
        writer.writerow(
            {
                name: f"{piece} {i} {name[-1]}{piece}"
                for name, piece in zip(COLUMNS, drawn, strict=True)
            }
        )
    path = folder / f"gpqa_{subset}.csv"
    path.write_text(text.getvalue(), newline="")
    return path


def compare_mmlu():
    """Compare every question that both ask, in order.

    Raises Skipped without a checkout.
    """
    suite = checkout("TRTLLM", "github.com/NVIDIA/TensorRT-LLM", "tensorrt_llm/evaluate/mmlu.py")
    compared = Compared(
        what="prompts, letters and subjects of mmlu, against TensorRT-LLM's evaluate/mmlu.py"
    )
    with tempfile.TemporaryDirectory() as folder:
        data = SHARED / "mmlu"
        if not data.is_dir():
            data = Path(folder, "mmlu")
            write_mmlu(data, SUBJECTS)
            compared.notes.append(f"generated questions: {SHARED / 'mmlu'} is not there")
        theirs = _asked(suite, data, Path(folder, "asked.json"))
        samples = (
            task_mmlu(num_samples=NUM_SAMPLES).load(DataRoots(roots=(data,)), NUM_SAMPLES).samples
        )
    if len(samples) != len(theirs):
        compared.add("questions", len(samples), len(theirs))
    for sample, wanted in zip(samples, theirs, strict=False):
        compared.add(sample.id, [sample.prompt, sample.target, sample.metadata["subject"]], wanted)
    return [compared]


def _asked(suite, data, out):
    run("tests.oracle._suite_mmlu", suite, data, out)
    return json.loads(out.read_text())


QUESTIONS = 600
"""Number of questions with options, and of those without."""
ANSWERS = 100
"""Number of answers to each question."""
MMMU_LETTERS = "ABCDEFGHI"
WORDS = (
    "Paris", "the cell", "a", "A", "B", "I", "5", "5.0", "1,000", "1000", "12.345", "-3", "1e3", "2.5e-4", "$6", "50%",  # noqa: E501
    "x=2", "y = -1.5", "red cat", "Red", "cat", "Yes", "No", "3/4", ".5", "é", "24/7", "<image 1>", "None of the above",  # noqa: E501
)  # fmt: skip
"""Options and answers."""
MMMU_PIECES = (
    "(A)", "(B)", "(C)", "(D)", "(I)", "A", "B", "C", "D", "E", "I", " A ", "A.", "B,", "(a)", "answer", "Answer: ",  # noqa: E501
    "answer is ", "is ", "so ", "thus ", "therefore ", "could be ", "final ", "result ", "=", " = ", "\n", "\n\n", ".",  # noqa: E501
    ",", "!", "?", ";", ":", "'", "''.", " ", "the", "option", "because it", "12", "1,234", "1,23", "3.5", "-7", "-.5",  # noqa: E501
    "1e5", "2E+3", "12.", "1234567", "1.2.3", "--4", "5e", "\u0663", "\u00bd", "\u2212 3", "Is ", "SO ", "\t", "\x85",  # noqa: E501
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """The right answer, or several right ones, and the options if the question has any."""

    answer: str | list[str]
    options: tuple[str, ...] = ()


def compare_mmmu():
    """Compare letters, and answers in words and numbers.

    Raises Skipped without lm-eval.
    """
    require("lm_eval")
    kept = random.getstate()
    try:  # lm-eval's file seeds the global generator
        theirs = importlib.import_module("lm_eval.tasks.mmmu.utils")
    finally:
        random.setstate(kept)
    with _guesses_told(theirs) as guessed:
        return [*_letters(theirs, guessed), _open_answers(theirs)]


@contextmanager
def _guesses_told(theirs):
    """Yield the list to which every random guess adds a letter."""
    original, guessed = theirs.random, []

    def choice(letters):
        guessed.append(letters[0])
        return letters[0]

    theirs.random = SimpleNamespace(choice=choice)
    try:
        yield guessed
    finally:
        theirs.random = original


def _letters(theirs, guessed):
    rng, right = random.Random("mmmu letters"), 0
    compared = Compared(what="letters of mmmu, and whether they are right, against lm-eval")
    guesses = Compared(
        what="answers of mmmu where lm-eval guesses at random: unparsed and wrong here"
    )
    for number in range(QUESTIONS):
        options = tuple(rng.choice(WORDS) for _ in range(rng.randint(1, 9)))
        question = Question(answer=rng.choice(MMMU_LETTERS[: len(options)]), options=options)
        row = {
            "question_type": "multiple-choice",
            "options": repr(list(options)),
            "answer": question.answer,
        }
        index = dict(zip(MMMU_LETTERS, options, strict=False))
        for text in _answers_mmmu(question, rng):
            guessed.clear()
            wanted = theirs.parse_multi_choice_response(text, list(index), index)
            score = _mmmu.score_choice(text, str(question.answer), options)
            if guessed:
                guesses.add(
                    f"{number} {options} {text!r}",
                    (score.outcome, score.value),
                    (Outcome.UNPARSED, 0.0),
                )
            else:
                value = theirs.process_results(row, [text])["acc"]
                right += int(value)
                compared.add(
                    f"{number} {options} {text!r}", (score.answer, score.value), (wanted, value)
                )
    compared.notes.append(f"{right} right")
    return compared, guesses


def _open_answers(theirs):
    rng, right, lists, by_list = random.Random("mmmu open"), 0, 0, 0
    compared = Compared(
        what="open answers of mmmu against lm-eval's parse_open_response and eval_open"
    )
    for number in range(QUESTIONS):
        several = rng.random() < 0.2
        question = Question(
            answer=rng.sample(WORDS, rng.randint(2, 3)) if several else rng.choice(WORDS)
        )
        for text in _answers_mmmu(question, rng):
            wanted = float(theirs.eval_open(question.answer, theirs.parse_open_response(text)))
            accepted = question.answer if isinstance(question.answer, list) else [question.answer]
            score = _mmmu.score_short_answer(text, accepted)
            right += int(wanted)
            compared.add(f"{number} {question.answer!r} {text!r}", score.value, wanted)
            if several:
                lists += 1
                row = {"question_type": "open", "answer": repr(question.answer)}
                by_list += score.value != theirs.process_results(row, [text])["acc"]
    compared.notes.append(f"{right} right")
    compared.notes.append(
        f"{lists} are of questions with several answers, held against each of them; lm-eval's"
        f" process_results takes the list as one text, and says something else of {by_list}"
    )
    return compared


def _answers_mmmu(question, rng):
    """Yield answers of random pieces.

    The right answer and the words of the options are often among them.
    """
    right = [question.answer] if isinstance(question.answer, str) else question.answer
    said = [*right, *(f"({one})" for one in right), *question.options, *rng.sample(WORDS, 4)]
    for _ in range(ANSWERS):
        drawn = (
            rng.choice(said if rng.random() < 0.4 else MMMU_PIECES)
            for _ in range(rng.randint(0, 10))
        )
        yield rng.choice(("", " ")).join(drawn)
