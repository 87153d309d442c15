"""Define GSM8K with the number on the last line of the answer.

The tasks gsm8k_inferencemax and gsm8k_inferencex of TensorRT-LLM's suite differ only in name and
references.
"""

from __future__ import annotations

from collections.abc import Callable

from serve_eval.errors import PlanError
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Metric,
    Outcome,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.scorers.numeric import (
    FLEXIBLE,
    STRICT,
    extract_flexible,
    extract_last_strict,
    normalise,
)
from serve_eval.tasks._gsm8k import (
    TEST_ROWS,
    Sampler,
    questions,
    right_and_wrong,
    sampler_in_protocol,
)
from serve_eval.tasks._options import (
    ByChat,
    Multiturn,
    NumFewshot,
    NumSamples,
    RandomSeed,
    StopsOfSuite,
)

STOP = ("</s>", "<|im_end|>")
LAST_LINE = "End your response with the answer on the last line, formatted as: #### [number]\n"


def last_line_task(name: str) -> Callable[..., Task]:
    """Return the function `task` for the task `name`."""

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
    outcome = (
        Outcome.UNPARSED if strict is None else Outcome.CORRECT if parts[STRICT] else Outcome.WRONG
    )
    return Score(value=parts[STRICT], outcome=outcome, answer=strict, parts=parts)
