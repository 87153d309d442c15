"""Build GSM8K's questions with their shots, for the last number or the last line.

The tasks gsm8k_inferencemax and gsm8k_inferencex of TensorRT-LLM's suite differ only in name and
references.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar

from serve_eval.datasets import local
from serve_eval.datasets.source import KNOWN
from serve_eval.errors import DatasetError, PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Prompt,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.scorers._expected import grade_value
from serve_eval.scorers.numeric import (
    FLEXIBLE,
    STRICT,
    extract_flexible,
    extract_last_strict,
    normalise,
)
from serve_eval.tasks._samples import (
    ByChat,
    Multiturn,
    NumFewshot,
    NumSamples,
    RandomSeed,
    StopsOfSuite,
    shuffle,
)

SOURCE = KNOWN["gsm8k"]
TRAIN_ROWS, TEST_ROWS = 7473, 1319

Sampler = Annotated[
    Literal["0.4.9", "0.4.10"],
    Setting("Version of lm-evaluation-harness that draws the examples of a chat in one turn."),
]
"""Versions of lm-evaluation-harness that differ in the shots of a chat in a single turn: up to
0.4.9.2, or from 0.4.10."""
T = TypeVar("T")


def questions(
    roots: DataRoots,
    wanted: int,
    *,
    num_fewshot: int,
    chat: bool,
    multiturn: bool,
    random_seed: int,
    sampler: Sampler,
    last_line: str = "",
) -> Dataset:
    """Return the first `wanted` questions of the shuffled test split.

    `last_line` follows every question, those of the shots too. Raises DatasetError if the data is
    missing or too small.
    """
    folder = local.find_folder(SOURCE, roots, local.split_markers(["test", "train"]))
    files = [local.find_split(SOURCE, folder, split) for split in ("train", "test")]
    train, test = (local.rows(file, ["question", "answer"]) for file in files)
    if len(train) < num_fewshot:
        raise DatasetError(
            f"GSM8K is incomplete: {files[0].path} has {len(train)} questions; {num_fewshot} are"
            " needed as examples",
            hint=local.advice(SOURCE),
        )
    told = f"GSM8K is incomplete: {files[1].path} has {len(test)} questions"
    local.check_rows(roots, len(test), wanted, told, SOURCE)
    solved = [_Shot(_question(row, last_line), row["answer"]) for row in train]
    draws = shots(
        solved, num_fewshot, random_seed, twice=chat and not multiturn and sampler == "0.4.9"
    )
    samples = [
        Sample(
            id=f"test-{row}",
            prompt=_prompt(_question(test[row], last_line), next(draws), chat, multiturn),
            target=test[row]["answer"],
        )
        for row in shuffle(len(test), random_seed)[:wanted]
    ]
    return Dataset(
        samples=samples,
        files=tuple(file.source for file in files),
        total=len(test),
        deviation=_deviation(len(train), len(test)),
    )


def sampler_in_protocol(sampler: Sampler, *, chat: bool, multiturn: bool) -> dict[str, object]:
    """Return the sampler's entry in the fingerprint.

    It is empty for the older sampler, and if both draw the same shots.
    """
    return {"fewshot_sampler": sampler} if chat and not multiturn and sampler != "0.4.9" else {}


def right_and_wrong(sample: Sample) -> tuple[str, str]:
    """Return the worked solution, and another number in its form."""
    number = normalise(sample.target)
    return f" {sample.target}", f" I am not sure.\n#### {'1' if number == '0' else '0'}"


def _deviation(train: int, test: int) -> str | None:
    """Return how the sizes differ from the published ones.

    Another training split would give other shots.
    """
    if (train, test) == (TRAIN_ROWS, TEST_ROWS):
        return None
    return (
        f"{train} training and {test} test questions, where GSM8K has {TRAIN_ROWS} and {TEST_ROWS}"
    )


class _Shot:
    """A solved question with its text in a prompt, built once for all prompts."""

    __slots__ = ("answer", "question", "text")

    def __init__(self, question: str, answer: str) -> None:
        self.question, self.answer = question, answer
        self.text = f"{question} {answer}\n\n"


def shots(train: Sequence[T], count: int, seed: int, *, twice: bool) -> Iterator[list[T]]:
    """Yield the shots of each question in evaluation order, from the unshuffled training split.

    lm-evaluation-harness up to 0.4.9.2 draws `twice` for a chat prompt in a single turn and uses
    the second draw.
    """
    rng = random.Random(seed)
    while True:
        if twice and count:
            rng.sample(train, count)
        yield rng.sample(train, count) if count else []


def _question(row: dict[str, Any], last_line: str) -> str:
    return f"Question: {row['question']}\n{last_line}Answer:"


def _prompt(question: str, shots: Sequence[_Shot], chat: bool, multiturn: bool) -> Prompt:
    if not multiturn:
        one_turn = "".join([shot.text for shot in shots]) + question
        return (Message(role="user", content=one_turn),) if chat else one_turn
    turns = [
        turn
        for shot in shots
        for turn in (
            Message(role="user", content=shot.question),
            Message(role="assistant", content=shot.answer),
        )
    ]
    return (*turns, Message(role="user", content=question))


STOP = ("</s>", "<|im_end|>")
LAST_LINE = "End your response with the answer on the last line, formatted as: #### [number]\n"


def last_line_task(asker: str) -> Callable[..., Task]:
    """Return the function of the task that asks as `asker` does."""
    name = f"gsm8k_{asker.lower()}"

    def task(
        *,
        num_samples: NumSamples = TEST_ROWS,
        num_fewshot: NumFewshot = 5,
        apply_chat_template: ByChat = True,
        fewshot_as_multiturn: Multiturn = True,
        fewshot_sampler: Sampler = "0.4.9",
        random_seed: RandomSeed = 0,
        suite_exact: StopsOfSuite = False,
    ) -> Task:
        """Return the task with its options.

        The options are those of gsm8k. The value is that of the strict filter alone, which takes
        the last `#### N` here. Raises PlanError for options that exclude each other.
        """
        if fewshot_as_multiturn and not apply_chat_template:
            raise PlanError(f"{name}.fewshot_as_multiturn needs apply_chat_template")
        if num_fewshot < 0 or num_samples < 1:
            raise PlanError(f"{name}: num_fewshot must be 0 or more, num_samples 1 or more")
        stop = () if apply_chat_template and not suite_exact else STOP

        def load(roots: DataRoots, wanted: int) -> Dataset:
            return questions(
                roots,
                wanted,
                num_fewshot=num_fewshot,
                chat=apply_chat_template,
                multiturn=fewshot_as_multiturn,
                random_seed=random_seed,
                sampler=fewshot_sampler,
                last_line=LAST_LINE,
            )

        return Task(
            name=name,
            version=1,
            datasets=("gsm8k",),
            reference_file=name,
            metric=Metric(),
            hypothesis=Hypothesis(num_samples=num_samples),
            sampling=SamplingParams(max_tokens=12288, stop=stop),
            extra={"truncate_prompt_tokens": 4096},
            chat=apply_chat_template,
            protocol={
                "fewshot_as_multiturn": fewshot_as_multiturn,
                "num_fewshot": num_fewshot,
                "random_seed": random_seed,
                **sampler_in_protocol(
                    fewshot_sampler, chat=apply_chat_template, multiturn=fewshot_as_multiturn
                ),
            },
            load=load,
            score=score,
            answers=right_and_wrong,
            scoring="inline",
        )

    task.__doc__ = f"""\
GSM8K as {asker} asks it: 5-shot chat in turns, scored by the last line "#### N".

Data as for gsm8k. References of TensorRT-LLM's suite have an explicit threshold of 94. A sample is
a conversation of five solved questions and an open one, each with the line that asks for that form.
"""
    return task


def score(sample: Sample, response: Response) -> Score:
    """Return 1 if the number after the last `#### ` is right.

    The parts also say if the last number of any kind is right.
    """
    target = normalise(sample.target)
    strict, flexible = extract_last_strict(response.text), extract_flexible(response.text)
    parts = {
        STRICT: float(strict is not None and normalise(strict) == target),
        FLEXIBLE: float(flexible is not None and normalise(flexible) == target),
    }
    return grade_value(parts[STRICT], strict, parts)


gsm8k_inferencemax = last_line_task("InferenceMax")
gsm8k_inferencex = last_line_task("InferenceX")
